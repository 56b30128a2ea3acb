"""The library's functions for training logs, and the evidence from logs for `resolve`."""
