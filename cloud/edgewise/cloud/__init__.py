"""The cloud engine: durable jobs in, streams out, worked off by engines of the same kind as a device has."""
