"""The device: puts the parts together and runs them as one service."""
