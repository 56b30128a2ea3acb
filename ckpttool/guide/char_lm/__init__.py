"""A small training to try the guard on: 111,546 parameters, 300 steps, under a minute on one core."""
