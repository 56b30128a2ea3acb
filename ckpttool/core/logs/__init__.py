"""Training logs: the parts common to all trainers, and the general formats."""
