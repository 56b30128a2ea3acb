"""What `guard` and `nan` answer: JSON beside the table."""
