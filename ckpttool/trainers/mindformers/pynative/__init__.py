"""MindFormers' PyNative trainer: its configs, what it loads on its own, and how a resume is launched.

Its saves have the `iteration_*` layout of the static trainer, and are read there.
"""
