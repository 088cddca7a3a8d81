"""Commands to devices: sent until they are acknowledged or too late, and followed to their end."""
