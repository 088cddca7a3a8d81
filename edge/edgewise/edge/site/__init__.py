"""State of the device for a plant's or a home's own systems, on topics that are none of the fleet's (docs/site.md)."""
