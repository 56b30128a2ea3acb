"""FP8 in each framework: its settings, the experiments it supports, and the arithmetic in its logs."""
