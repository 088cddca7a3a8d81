"""Rollouts: a desired document goes to a group in stages, gated by what the devices really do, and comes back by itself."""
