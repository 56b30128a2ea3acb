"""The ways in which MindFormers arranges its files."""
