"""Training in FP8: whether it hurts, where, and what to do."""
