"""What is read of checkpoints, and computed of their tensors, for FP8."""
