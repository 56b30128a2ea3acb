"""What copies of the same tensors say of each other: who is a replica of whom, and whose file is odd."""
