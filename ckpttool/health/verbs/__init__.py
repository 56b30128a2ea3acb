"""The library's functions for training logs, and their input to `resolve`."""
