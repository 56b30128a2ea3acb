"""MindFormers' PyNative trainer: configs, starts, launches and data."""
