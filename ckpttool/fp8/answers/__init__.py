"""Output of the FP8 commands as JSON and tables."""
