"""FP8 training: find out whether FP8 hurts a run, which part causes it, and how to fix it."""
