"""The files that are FP8's own."""
