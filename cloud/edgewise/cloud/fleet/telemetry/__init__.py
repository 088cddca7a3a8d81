"""Telemetry of devices: single samples, figures of minutes and hours, and how long each is kept."""
