"""Data types of a guarded training run: captures and reports."""
