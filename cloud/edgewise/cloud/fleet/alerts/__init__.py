"""Alerts: rules over what devices report, with hysteresis, and their delivery by webhook and mail."""
