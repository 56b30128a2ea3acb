"""A small training to try the guard on, with 111,546 parameters and 300 steps, in under a minute on one core."""
