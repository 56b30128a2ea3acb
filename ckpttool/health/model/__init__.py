"""Data types of health: questions, answers, and the evidence of logs about checkpoints."""
