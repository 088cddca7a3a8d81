"""Decoders whose forward pass is one call of the native kernels."""
