"""FP8 as each framework has it: what it is told by, what it can express, and what its logs say that it did."""
