"""What it means that several machines looked: pure rules."""
