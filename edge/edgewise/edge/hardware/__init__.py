"""What the machine tells of itself: temperature, power, memory, disk."""
