"""One configuration-driven decoder for the Llama-like families."""
