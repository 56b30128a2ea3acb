"""Files that only the FP8 feature reads and writes."""
