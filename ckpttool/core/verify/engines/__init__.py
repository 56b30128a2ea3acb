"""Engines that run the tasks. Order never matters, so a distributed engine is one more module."""
