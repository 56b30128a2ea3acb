"""What is answered about training logs: JSON beside the table."""
