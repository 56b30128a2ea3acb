"""What the library answers about training logs, and what `resolve` is told of them."""
