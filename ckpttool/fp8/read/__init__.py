"""Statistics of the tensors of checkpoints for FP8."""
