"""Pictures: a step-level scheduler of denoising beside the token engine, with the same life in a process of its own."""
