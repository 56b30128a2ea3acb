"""The files that a guarded training writes."""
