"""MQTT 5: a link that survives its broker, the probe of a broker, and a broker of our own for one machine."""
