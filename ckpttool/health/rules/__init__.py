"""Evidence in training logs about checkpoints, as pure rules."""
