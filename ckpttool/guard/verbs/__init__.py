"""The library's functions for guarded trainings."""
