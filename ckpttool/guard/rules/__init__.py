"""Rules over the records of a guarded run, as pure functions."""
