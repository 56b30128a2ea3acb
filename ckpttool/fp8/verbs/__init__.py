"""What the library answers about FP8."""
