"""Picture models: networks, noise schedules and codecs, driven one step at a time by `engine.pictures`."""
