"""What training logs say of checkpoints, as pure rules."""
