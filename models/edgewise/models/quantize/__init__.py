"""Making files in 8 and 4 bits of models in GGUF, calibrated on a text."""
