"""Our own small text-to-image model: network, sampler, encoder of prompts, files."""
