"""Answers of `guard`: JSON and table."""
