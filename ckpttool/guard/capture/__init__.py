"""What is kept of a step, and written down where it was not finite."""
