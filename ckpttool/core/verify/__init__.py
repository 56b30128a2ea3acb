"""Verification: takes an inventory and returns verdicts on whether every shard is intact."""
