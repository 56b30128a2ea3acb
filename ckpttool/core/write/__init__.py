"""The only package that changes a disk: files and checkpoints are replaced or moved atomically, under a lock."""
