"""Compare copies of the same tensors, and find files that differ from their replicas."""
