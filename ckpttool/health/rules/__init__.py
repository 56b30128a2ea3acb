"""Evidence of training logs about checkpoints, as pure rules."""
