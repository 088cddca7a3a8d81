"""Kernels in C++ for the CPU, loaded with ctypes: sources in `src`, built by `kernels/build_native.py`."""
