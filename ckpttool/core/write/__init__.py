"""The only room that changes a disk: files are replaced whole, checkpoints are moved away whole, under a lock."""
