"""Code shared by the adapters for engines that own their gradients: they drop an update as if it overflowed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ckpttool.guard.step import Guard
from ckpttool.guard.switch import report


class EngineScale:
    """The engine's loss scale, with the interface that the guard expects of a loss scaler."""

    def __init__(self, scale: Callable[[], float]) -> None:
        self._scale = scale

    @staticmethod
    def is_enabled() -> bool:
        """Return True, because the engine handles its overflows."""
        return True

    def get_scale(self) -> float:
        """Return the current scale."""
        return float(self._scale())

    def state_dict(self) -> dict[str, float]:
        """Return the state to record in a capture."""
        return {"scale": self.get_scale()}


def guard_settings(settings: dict[str, Any], engine: str) -> tuple[dict[str, Any], str]:
    """Return the arguments of a guard in an engine, and how the guard was switched on.

    Args:
        settings: The arguments from the user.
        engine: Name of the engine, for the message.
    """
    chosen = dict(settings)
    switched_on = chosen.pop("switched_on", "code")
    if chosen.get("features"):
        report(f"feature values are not checked: under {engine}, parameters have no gradients of their own")
    return {**chosen, "features": "", "trainer_drops": True}, switched_on


def begin_at_forward(guard: Guard, model: nn.Module) -> None:
    """Begin a micro-batch at each forward pass of a model in training mode."""

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and module.training and not torch.compiler.is_compiling():
            guard.begin({"args": args, "kwargs": kwargs})

    model.register_forward_pre_hook(begin, with_kwargs=True)


def wrap(owner: object, name: str, around: Callable[..., Any]) -> None:
    """Replace a method of one object. `around` receives the original method first, then its arguments."""
    original = getattr(owner, name)
    replaced = functools.wraps(original)(functools.partial(around, original))
    setattr(owner, name, replaced)
