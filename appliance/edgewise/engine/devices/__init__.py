"""One model on several devices: a process for each, led by the engine's own (docs/tensor_parallel.md)."""
