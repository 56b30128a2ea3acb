"""Engines that run the tasks. The order of tasks never matters, so a distributed engine is just another module."""
