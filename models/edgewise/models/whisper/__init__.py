"""Whisper (Radford et al. 2022): speech to text over the engine's paged cache."""
