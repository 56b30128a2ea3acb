"""Engines that run the tasks. The order never matters, so a distributed engine is just another module."""
