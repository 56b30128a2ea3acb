"""Computation of a captured step in another process: whether it is reproduced, and the origin of the fault."""
