"""Speech to text: where somebody speaks, window by window through the engine, and what was said with its times."""
