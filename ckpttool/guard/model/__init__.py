"""The nouns of a guarded training: captures, reports."""
