"""Sound in and out: /v1/audio/*."""
