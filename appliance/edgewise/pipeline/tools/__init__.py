"""Tool calls: shown to the model in its own style, read from its answer as it comes, forced by a grammar where asked for."""
