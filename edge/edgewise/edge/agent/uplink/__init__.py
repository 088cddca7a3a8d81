"""What the fleet has not acknowledged yet: kept on disk, sent until it has."""
