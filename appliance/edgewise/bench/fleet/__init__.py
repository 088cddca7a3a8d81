"""A fleet of simulated devices: real MQTT clients with scripted behaviour, whose engine is a deterministic fake."""
