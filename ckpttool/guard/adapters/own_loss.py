"""The loss that a model returns itself, which allows recomputing a loop without knowing more about it.

It is the loss of the training run only if `backward` is called on it, possibly multiplied or divided by numbers before.
The graph of the loss shows that, without reading a value from the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ckpttool.guard.capture.again import CannotRecompute
from ckpttool.guard.capture.memory import Remembered

Factor: TypeAlias = "tuple[str, float]"
"""An operator, `/` or `*`, and a number."""

_MOST_FACTORS = 4
_KEY = "ckpttool_own_loss"
_OPERATORS = {"DivBackward0": "/", "MulBackward0": "*"}


class OwnLoss:
    """The loss that a model returns, and the numbers by which the training code multiplies or divides it."""

    def __init__(self) -> None:
        self._factors: weakref.WeakKeyDictionary[Remembered, tuple[Factor, ...] | None] = weakref.WeakKeyDictionary()
        self._token = object()

    def returned(self, _model: nn.Module, _inputs: object, output: object) -> None:
        """Mark the loss in an output of the model. Used as a forward hook."""
        if torch.compiler.is_compiling():  # none of this may be part of a compiled model
            return
        with suppress(Exception):  # as below
            loss = _loss_in(output)
            node: Any = None if loss is None else loss.grad_fn
            if node is not None:
                node.metadata[_KEY] = self._token

    def passed(self, micro: Remembered, loss: Tensor) -> None:
        """Record the loss of a micro-batch as `backward` receives it, before scaling.

        A second loss makes it unknown.
        """
        factors = None
        if micro not in self._factors:
            with suppress(Exception):  # no error here may end the training: the loss is unknown then
                factors = self._factors_of(loss)
        self._factors[micro] = factors

    def _factors_of(self, loss: Tensor) -> tuple[Factor, ...] | None:
        factors: list[Factor] = []
        node: Any = loss.grad_fn
        while node is not None and node.metadata.get(_KEY) is not self._token:
            operator = _OPERATORS.get(node.name())
            inputs = [following for following, _ in node.next_functions if following is not None]
            if operator is None or len(inputs) != 1 or len(factors) == _MOST_FACTORS:
                return None
            with torch._C._DisableTorchDispatch():  # noqa: SLF001  in a dispatch mode, torch cannot read the number
                number = node._saved_other  # noqa: SLF001  torch has no other name for it
                if number.numel() != 1 or number.device.type != "cpu":
                    return None
                factors.append((operator, number.item()))
            node = inputs[0]
        return None if node is None else tuple(reversed(factors))

    def recompute(self, model: nn.Module, micro: Remembered) -> Tensor:
        """Recompute the loss of a micro-batch, as `backward` received it.

        Raises:
            CannotRecompute: It is not the model's own loss, or the inputs of the model are not known.
        """
        factors = self._factors.get(micro)
        if factors is None or not isinstance(micro.batch, Mapping) or micro.batch.keys() != {"args", "kwargs"}:
            raise CannotRecompute(
                "the loss is not the one that the model returns; CaptureSettings(loss_of=...) lets the guard "
                "recompute it"
            )
        with ExitStack() as stack:
            for kind, dtype in micro.outer_autocast:
                stack.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype)))
            loss = _loss_in(model(*micro.batch["args"], **micro.batch["kwargs"]))
        if loss is None:
            raise CannotRecompute("the model returned no loss this time")
        for operator, number in factors:
            loss = loss / number if operator == "/" else loss * number
        return loss


def _loss_in(output: object) -> Tensor | None:
    """Return the loss in a model's output: the output itself, its `loss`, or the first of several values."""
    candidates: list[Callable[[], object]] = [
        lambda: output,
        lambda: output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None),
        lambda: output[0] if isinstance(output, tuple) and output else None,
    ]
    values = (candidate() for candidate in candidates)
    return next((value for value in values if isinstance(value, Tensor) and value.numel() == 1), None)
