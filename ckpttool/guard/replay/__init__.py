"""A captured step again, in another process: whether it is reproduced, and where it began."""
