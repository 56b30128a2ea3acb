"""Optimizers as they are made in every way they can be: one tensor at a time, in lists, and fused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn, optim

from tests.guard.loop import Updates

_SETTINGS: dict[type[optim.Optimizer], dict[str, Any]] = {
    optim.SGD: {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
    optim.Adam: {"lr": 0.01, "amsgrad": True},
    optim.AdamW: {"lr": 0.01, "weight_decay": 0.1},
    optim.NAdam: {"lr": 0.01},
    optim.RAdam: {"lr": 0.01},
    optim.Adagrad: {"lr": 0.01},
    optim.RMSprop: {"lr": 0.01, "momentum": 0.9, "centered": True},
    optim.Adadelta: {"lr": 0.1},
    optim.ASGD: {"lr": 0.01},
    optim.Adafactor: {"lr": 0.01},
}


def _muon(parameters: list[nn.Parameter]) -> optim.Optimizer:
    return optim.Muon([parameter for parameter in parameters if parameter.ndim == 2], lr=0.01)


def every_way() -> Iterator[tuple[str, Updates]]:
    """Yield each optimizer in each way, with the name of both."""
    for kind, settings in _SETTINGS.items():
        for way in ("single", "foreach", "fused"):
            if way == "single" or way in signature(kind).parameters:
                flags: dict[str, Any] = {
                    name: name == way for name in ("foreach", "fused") if name in signature(kind).parameters
                }
                yield f"{kind.__name__}-{way}", partial(kind, **settings, **flags)
    if hasattr(torch.optim, "Muon"):
        yield "Muon-single", _muon
