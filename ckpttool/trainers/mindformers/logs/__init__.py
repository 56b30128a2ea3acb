"""Training logs of MindFormers."""
