"""The files that a guarded training run writes."""
