"""Captures: the inputs of a step, in memory, and on disk if the step was not finite."""
