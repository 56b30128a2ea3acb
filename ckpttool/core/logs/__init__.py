"""Training logs: what every trainer's have in common, and those that are none's own."""
