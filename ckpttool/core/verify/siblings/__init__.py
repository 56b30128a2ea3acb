"""Checks that need other ranks, or the same rank at another step."""
