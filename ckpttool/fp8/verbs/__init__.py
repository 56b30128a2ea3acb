"""The library's functions for FP8."""
