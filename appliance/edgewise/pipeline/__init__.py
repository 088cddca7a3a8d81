"""Where text lives: templates, tokens, stop strings and the walk from a task to its chunks and its receipt."""
