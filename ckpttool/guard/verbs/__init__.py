"""The library's functions for guarded training runs."""
