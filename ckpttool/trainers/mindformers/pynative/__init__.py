"""MindFormers' PyNative trainer: its configs, the save that it loads on its own, and how to launch a resume.

This trainer's saves have the static trainer's `iteration_*` layout, and are read by the same code.
"""
