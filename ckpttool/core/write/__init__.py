"""The only package that changes a disk; it replaces or moves files and checkpoints atomically, under a lock."""
