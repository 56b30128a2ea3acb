"""Checks of a shard, one module per kind."""
