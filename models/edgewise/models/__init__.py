"""Models: where they come from, how their files are read, and the networks themselves. Knows nothing of requests."""
