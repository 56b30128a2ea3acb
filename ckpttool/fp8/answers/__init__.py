"""Answers of the FP8 commands: JSON and table."""
