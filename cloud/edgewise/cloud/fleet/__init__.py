"""The fleet service: it knows every device, says what is desired of it, and records what really happened."""
