"""What only comparison with other ranks, and with the same rank at another step, shows."""
