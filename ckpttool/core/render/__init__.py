"""Turns nouns into text."""
