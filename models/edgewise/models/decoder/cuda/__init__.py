"""A decoder on a CUDA device: prompts in long eager passes, answers by graphs that run a whole step each."""
