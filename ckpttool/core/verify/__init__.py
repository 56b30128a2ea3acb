"""Verification: takes an inventory, and returns verdicts that show whether every shard is intact."""
