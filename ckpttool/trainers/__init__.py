"""What each trainer does: where its files lie, what its records mean, how it is told to load."""
