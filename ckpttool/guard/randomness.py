"""The states of all random-number generators that a step may use: save and restore."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

import torch

States: TypeAlias = "dict[str, object]"
"""By generator: `torch`, `cuda`, `npu` or `xpu` (one for each device), `numpy` if it is imported, `python`."""

_DEVICES = ("cuda", "npu", "xpu")
"""Modules with a generator on each device, if torch has them; torch_npu adds the module of Ascend."""


def states(*, devices: bool = True) -> States:
    """Return all states, in the form for `state_tree.spell`; reading those of devices waits for the devices."""
    saved: States = {"torch": torch.get_rng_state(), "python": random.getstate()}
    for name, module in _accelerators() if devices else ():
        if module.is_initialized():
            saved[name] = module.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        saved["numpy"] = numpy.random.get_state()
    return saved


def restore(saved: Mapping[str, object]) -> None:
    """Restore the output of `states`; generators that it does not contain stay unchanged.

    Raises:
        ValueError, TypeError, RuntimeError: It is not such a state; the states before it were restored.
    """
    if "torch" in saved:
        torch.set_rng_state(cast("torch.Tensor", saved["torch"]))
    if "python" in saved:
        random.setstate(cast("tuple[object, ...]", saved["python"]))
    for name, module in _accelerators():
        for device, state in enumerate(cast("list[torch.Tensor]", saved.get(name, []))[: module.device_count()]):
            module.set_rng_state(state, device)
    if "numpy" in saved:
        import numpy as np

        np.random.set_state(cast("tuple[str, np.ndarray, int, int, float]", saved["numpy"]))  # noqa: NPY002  the global generator


def _accelerators() -> Iterator[tuple[str, Any]]:
    modules = ((name, getattr(torch, name, None)) for name in _DEVICES)
    return ((name, module) for name, module in modules if module is not None and module.is_available())
