"""What each command answers, one module an answer: its JSON beside its table."""
