"""KV pages beyond the device: moving them, and the tiers in host memory and on disk that keep them."""
