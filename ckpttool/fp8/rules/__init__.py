"""FP8 training: whether it hurts, where, and what to do."""
