"""Inside the training process: drop what would poison the weights, and keep what is needed to see why."""
