"""Finds the module of an operation in the forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class ModuleTrace:
    """Tracker for the forward calls of a model's modules.

    An operation in the backward pass belongs to the module in whose forward call its autograd node was created. torch's
    own `ModuleTracker` reports a different module there.
    """

    def __init__(self, model: nn.Module, label: Callable[[str, nn.Module], str] = lambda name, _module: name) -> None:
        """Store the model, and a function that returns a label for a module and its name."""
        self._labels = [(label(name, module), module) for name, module in model.named_modules()]
        self._calls: list[tuple[int, int, str]] = []  # first and last number of the nodes, and the module
        self._open: list[tuple[int, str]] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> ModuleTrace:  # noqa: PYI034  `Self` is in Python since 3.11
        self._calls.clear()
        self._open.clear()
        for label, module in self._labels:  # torch's compiler warns about hooks on all modules
            self._handles += [
                module.register_forward_pre_hook(self._beginning(label)),
                module.register_forward_hook(self._end, always_call=True),
            ]
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward pass is running, including recomputation during backward."""
        return bool(self._open)

    def module(self) -> str:
        """Return the innermost module that is running, or "" outside of modules."""
        if self._open:
            return self._open[-1][1]
        node = current_node()
        if node is None:
            return ""
        number = node._sequence_nr()  # noqa: SLF001  torch has no public name for it
        around = [(last - first, name) for first, last, name in self._calls if first <= number < last]
        return min(around, default=(0, ""))[1]

    def _beginning(self, label: str) -> Callable[..., None]:
        return lambda *_: self._open.append((_next_number(), label))

    def _end(self, *_: object) -> None:
        if self._open:
            first, label = self._open.pop()
            self._calls.append((first, _next_number(), label))


def current_node() -> Any:  # noqa: ANN401  torch has no type for a node
    """Return the autograd node that is running, or None outside of backward."""
    return torch._C._current_autograd_node()  # noqa: SLF001  as above


def _next_number() -> int:
    number: int = torch._C._autograd._get_sequence_nr()  # noqa: SLF001  torch.autograd._get_sequence_nr is a name of it
    return number
