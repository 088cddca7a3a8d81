"""The device's agent: presence, commands, telemetry and what waits for the fleet, over the one link to the broker."""
