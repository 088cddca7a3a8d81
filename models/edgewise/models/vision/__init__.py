"""Models that look at pictures: labels and text."""
