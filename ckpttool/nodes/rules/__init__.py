"""Pure rules for a tree that was recorded on several machines."""
