"""How this device becomes one of a fleet, and stays one: its own key, its certificate, and the renewal of it."""
