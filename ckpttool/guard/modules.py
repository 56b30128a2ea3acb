"""Which module an operation belongs to, in forward and in backward."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class ModuleTrace:
    """Follows the forward calls of a model's modules while it is entered.

    An operation in backward belongs to the module in whose forward call its autograd node was numbered: torch's own
    `ModuleTracker` names another one there.
    """

    def __init__(self, model: nn.Module) -> None:
        """Take the model by whose names modules are told."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._calls: list[tuple[int, int, str]] = []  # numbers of the nodes from and up to, and the module
        self._open: list[tuple[int, str]] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> ModuleTrace:  # noqa: PYI034  `Self` is in Python since 3.11
        self._calls.clear()
        self._open.clear()
        self._handles = [
            register_module_forward_pre_hook(lambda module, _arguments: self._begin(module)),
            register_module_forward_hook(lambda module, _arguments, _result: self._end(module), always_call=True),
        ]
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    def here(self) -> tuple[str, str]:
        """Return the module whose operation runs now, '' where it is none's, and `forward` or `backward`."""
        # What runs in backward is told nowhere else.
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001
        phase = "forward" if node is None else "backward"
        if self._open:  # also of what is computed anew in backward
            return self._open[-1][1], phase
        if node is None:
            return "", phase
        number = node._sequence_nr()  # noqa: SLF001  as above
        around = [(last - first, name) for first, last, name in self._calls if first <= number < last]
        return min(around, default=(0, ""))[1], phase

    def _begin(self, module: nn.Module) -> None:
        name = self._names.get(id(module))
        if name is not None:
            self._open.append((_next_number(), name))

    def _end(self, module: nn.Module) -> None:
        if self._open and self._names.get(id(module)) == self._open[-1][1]:
            first, name = self._open.pop()
            self._calls.append((first, _next_number(), name))


def _next_number() -> int:
    """Return the number that the next autograd node of this thread gets."""
    number: int = torch._C._autograd._get_sequence_nr()  # noqa: SLF001  torch.autograd._get_sequence_nr is a name of it
    return number
