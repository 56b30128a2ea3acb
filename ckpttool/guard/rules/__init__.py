"""What is made of a guarded training's records: pure rules."""
