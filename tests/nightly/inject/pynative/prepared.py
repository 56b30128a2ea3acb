"""Import the PyNative trainer, with all that a machine without accelerators and a tiny training need."""

from on_a_cpu import WORLD

if WORLD > 1:
    import several_ranks

    several_ranks.replace_gathers()

import tiny_model  # noqa: F401  registers itself

if WORLD > 1:
    several_ranks.sum_gradients()
