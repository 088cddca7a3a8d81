"""Acts before the hardware throttles: less at once, slower pictures, elsewhere what may go there (docs/governor.md)."""
