"""The nouns: frozen values with units, and no behaviour beyond their own invariants."""
