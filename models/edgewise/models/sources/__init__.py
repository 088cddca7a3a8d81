"""Where the bytes of a model file come from: one module per kind of source, each filling a `PartialFile`."""
