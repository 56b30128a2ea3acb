"""Rules over a guarded training's records, as pure functions."""
