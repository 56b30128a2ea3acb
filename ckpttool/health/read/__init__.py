"""What is read of logs beyond their steps, and of replays that were saved."""
