"""MindFormers (MindSpore Transformers)."""
