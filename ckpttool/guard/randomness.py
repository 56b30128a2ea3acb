"""The states of all generators of chance that a step may draw from: kept, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import TypeAlias, cast

import torch

States: TypeAlias = "dict[str, object]"
"""By generator: `torch`, `cuda` (one for each device), `numpy` where it is imported, `python`."""


def states() -> States:
    """Return all of them, as `state_tree.spell` takes them."""
    kept: States = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        kept["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kept["numpy"] = numpy.random.get_state()
    return kept


def restore(kept: Mapping[str, object]) -> None:
    """Put back what `states` returned; what is not in it stays as it is.

    Raises:
        ValueError, TypeError, RuntimeError: It is no such state; what came before it was put back.
    """
    if "torch" in kept:
        torch.set_rng_state(cast("torch.Tensor", kept["torch"]))
    if "python" in kept:
        random.setstate(cast("tuple[object, ...]", kept["python"]))
    if "cuda" in kept and torch.cuda.is_available():
        for device, state in enumerate(cast("list[torch.Tensor]", kept["cuda"])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
    if "numpy" in kept:
        import numpy as np

        np.random.set_state(cast("tuple[str, np.ndarray, int, int, float]", kept["numpy"]))  # noqa: NPY002  the global one
