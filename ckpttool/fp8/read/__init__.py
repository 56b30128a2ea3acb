"""Reading checkpoints and computing the statistics of their tensors for FP8."""
