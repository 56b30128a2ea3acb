"""A small training run to try the guard on: 111,546 parameters and 300 steps, in under a minute on one core."""
