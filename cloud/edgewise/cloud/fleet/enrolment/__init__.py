"""How a device becomes one of the fleet: claim codes, keys that never leave it, certificates of the fleet's own authority."""
