"""Readers of weight files: safetensors and GGUF behind one interface."""
