"""Output of the `guard` commands as JSON and tables."""
