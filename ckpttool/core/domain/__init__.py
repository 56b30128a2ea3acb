"""Immutable data types with explicit units; their only behaviour is to protect their own invariants."""
