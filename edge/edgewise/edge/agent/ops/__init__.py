"""What a fleet may ask a device to do, one operation a module."""
