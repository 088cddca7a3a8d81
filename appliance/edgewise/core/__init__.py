"""What every other package stands on: errors, settings, files, clock, logs, metrics. Knows no torch and no web framework."""
