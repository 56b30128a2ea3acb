"""Comparison of copies of the same tensors: replicas, and files that differ from theirs."""
