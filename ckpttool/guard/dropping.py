"""How an optimizer is kept from an update: without gradients it touches neither weights nor its own state.

With gradients of zero six of seven optimizers still move, by momentum and weight decay.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ckpttool.core.errors import UsageError
from ckpttool.guard.norm import is_sharded

_CLIPS_ITSELF = "FullyShardedDataParallel"
"""Torch's first; it is not imported for the question. The gradients of its second tell by themselves what they are."""


class Updated:
    """The parameters that an optimizer updates."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Take the optimizer, and the model whose order they have."""
        self._model = model
        self._optimizer = optimizer
        self._groups: list[int] = []
        self._ordered: list[Tensor] = []
        ordered = self.current()
        self.device = next((parameter.device for parameter in ordered), torch.device("cpu"))
        self.are_sharded = any(is_sharded(parameter) for parameter in ordered)
        """Whether to reduce their gradients takes all ranks."""
        self.only_model_clips = any(kind.__name__ == _CLIPS_ITSELF for kind in type(model).__mro__)
        """Whether nobody but the model's wrapper can take the norm over all ranks, and only while it clips."""

    def current(self) -> list[Tensor]:
        """Return them in the model's order, in which a sum of squares is what the training gets by itself."""
        groups = [len(group["params"]) for group in self._optimizer.param_groups]
        if groups != self._groups:
            updated = {
                id(parameter): parameter for group in self._optimizer.param_groups for parameter in group["params"]
            }
            parameters = {
                id(parameter): parameter for parameter in self._model.parameters() if id(parameter) in updated
            }
            self._groups, self._ordered = groups, list({**parameters, **updated}.values())
        return self._ordered

    def drop(self) -> bool:
        """Leave the optimizer nothing to do; tell that this was done.

        Not earlier than right before its step: a loss scaler raises where it finds no gradients to unscale.
        """
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        return True


class Closures:
    """What an optimizer calls for its gradients, as LBFGS does many times in one step."""

    def __init__(self, ready: Callable[[], None], *, is_one_step: bool) -> None:
        """Take what is called behind each.

        Args:
            ready: Looks at the gradients, and drops them where so decided.
            is_one_step: Whether a second call in a step is none of its own. Where updates are dropped it is one: the
                gradients of any call may be those that do harm.
        """
        self._ready = ready
        self._is_one_step = is_one_step
        self.is_repeated = False
        """Whether a call runs now that belongs to a step that was counted."""

    def guarded(self, closure: Callable[[], object]) -> Callable[[], object]:
        """Return what one step of an optimizer is handed instead of a closure."""
        was_called = False

        def guarded() -> object:
            nonlocal was_called
            self.is_repeated, was_called = was_called and self._is_one_step, True
            try:
                loss = closure()
                self._ready()
            finally:
                self.is_repeated = False
            return loss

        return guarded


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return what a trainer's wrapper steps: its hooks are those that run."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def refuse_undroppable(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that cannot be kept from an update.

    Raises:
        UsageError: It is one.
    """
    advice = "its updates cannot be dropped; mode='watch' says what would have been"
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise UsageError(f"{type(optimizer).__name__} has no hook before its step: {advice}")
    if hasattr(optimizer, "fused_backward") or (hasattr(model, "backward") and hasattr(model, "step")):
        raise UsageError(f"{type(optimizer).__name__} steps inside backward: {advice}")
    if isinstance(optimizer, LBFGS):
        raise UsageError(f"LBFGS takes many gradients in one step: {advice}")
