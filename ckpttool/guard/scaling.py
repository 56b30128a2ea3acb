"""The loss scaler of a training: at an overflow it does not call the optimizer, and who waits there hears nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler

if TYPE_CHECKING:
    from torch.optim import Optimizer

_NEAR = 16
"""Calls between a scaler and a hook of the optimizer that it steps, at most: they are seven."""


class Scaling:
    """Which scaler steps an optimizer, and whether it did so without calling it."""

    def __init__(self, scaler: GradScaler | None, optimizer: Optimizer) -> None:
        """Take the scaler that was handed over, and the optimizer."""
        self.scaler = scaler
        self._optimizer = optimizer
        self._has_looked = scaler is not None
        self._round: Mapping[int, Mapping[str, Any]] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is one that scales."""
        return self.scaler is not None and self.scaler.is_enabled()

    def finds(self) -> bool:
        """Tell whether a scaler calls the optimizer right now that nobody handed over. Looks once; keeps it."""
        if self._has_looked:
            return False
        self._has_looked = True
        callers = (frame.f_locals.get("self") for frame, _ in islice(walk_stack(None), _NEAR))
        self.scaler = next(
            (caller for caller in callers if isinstance(caller, GradScaler) and caller.is_enabled()), None
        )
        return self.scaler is not None

    def has_stepped(self) -> bool:
        """Tell whether the scaler stepped the optimizer, in its way, since this was asked last."""
        if self.scaler is None:
            return False
        # What it did with each optimizer until `update`, which begins a new round. Torch has no public name for it.
        last, self._round = self._round, getattr(self.scaler, "_per_optimizer_states", {})
        stage = last.get(id(self._optimizer), {}).get("stage")
        return getattr(stage, "name", None) == "STEPPED"
