"""Who runs the tasks. Order never matters, so a distributed engine is one more module."""
