"""The nouns of FP8: formats, recipes, curves, plans, probes."""
