"""The language in which devices are asked for: `model:smollm2 AND site:lyon AND NOT state:online`."""
