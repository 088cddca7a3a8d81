"""Kernels for GPUs in Triton, each a program of one fixed shape. Imported for CUDA tensors only (`kernels.compiled`)."""
