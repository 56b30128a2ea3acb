"""Data types of FP8: formats, recipes, curves, plans, probes."""
