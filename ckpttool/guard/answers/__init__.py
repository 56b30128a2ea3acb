"""Answers of `guard` and `nan`: JSON and table."""
