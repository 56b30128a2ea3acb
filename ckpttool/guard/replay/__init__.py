"""Recomputation of a captured step in another process, to reproduce the fault and find its origin."""
