"""Talking with a device: who speaks when, and the loop from speech heard to speech said."""
