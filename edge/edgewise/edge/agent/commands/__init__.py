"""Commands: on disk before they are accepted, done once, answered until the fleet has the answer."""
