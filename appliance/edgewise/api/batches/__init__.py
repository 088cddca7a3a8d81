"""/v1/files and /v1/batches, and the runner that works batches off."""
