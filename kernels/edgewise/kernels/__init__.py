"""Numeric operations, one file each: a checked public function over a PyTorch reference."""
