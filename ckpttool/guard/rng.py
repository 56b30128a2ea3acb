"""The state of every generator of random numbers that a training draws from, and back."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def random_state(device: str = "cpu") -> dict[str, object]:
    """Return what decides on the next random numbers: torch's, those of all its devices, numpy's, Python's.

    Args:
        device: Type of the devices that train; of `cpu` there is one generator.

    Returns:
        Plain types, arrays and tensors. Of numpy nothing where nobody imported it: then nobody drew from it.
    """
    numpy: Any = sys.modules.get("numpy.random")
    return {
        "torch": torch.get_rng_state(),
        "devices": {} if device == "cpu" else {device: list(_generators(device).get_rng_state_all())},
        "numpy": None if numpy is None else numpy.get_state(),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set what `random_state` returned. What is None or not there stays as it is."""
    torch.set_rng_state(state["torch"].cpu())
    for device, states in state["devices"].items():
        _generators(device).set_rng_state_all([each.cpu() for each in states])
    if state["numpy"] is not None:
        import numpy as np

        np.random.set_state(state["numpy"])  # noqa: NPY002  the generator that old code draws from
    random.setstate(state["python"])


def _generators(device: str) -> Any:  # noqa: ANN401  a module of torch for one kind of device
    return torch.get_device_module(device)
