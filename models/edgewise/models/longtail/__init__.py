"""Decoders that Edgewise does not implement, run by transformers over the paged KV cache."""
