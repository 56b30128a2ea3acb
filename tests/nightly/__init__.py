"""What needs hours, or libraries that no commit should wait for: the real trainers, started."""
