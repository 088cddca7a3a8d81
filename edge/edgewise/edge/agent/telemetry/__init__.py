"""Figures of the device for the fleet; names and units: docs/telemetry.md."""
