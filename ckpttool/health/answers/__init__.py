"""Answers about training logs: JSON and table."""
