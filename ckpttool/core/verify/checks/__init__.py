"""One module for each way of looking at a shard."""
