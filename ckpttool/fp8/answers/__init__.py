"""What the FP8 commands answer: JSON beside the table."""
