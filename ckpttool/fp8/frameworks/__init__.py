"""FP8 in each framework: the settings, the supported experiments, and the arithmetic in the logs."""
