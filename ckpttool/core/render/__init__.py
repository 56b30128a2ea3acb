"""Nouns in, text out."""
