"""Several engines under one memory budget: which is loaded, which is unloaded, who waits."""
