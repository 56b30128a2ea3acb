"""Inventory in, verdicts out: is every shard whole?"""
