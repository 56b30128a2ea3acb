"""Reading logs beyond their steps, and saved replays."""
