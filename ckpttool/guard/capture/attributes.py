"""Plain attributes of modules. A training step may count, or collect values in lists, but a recomputation must not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ckpttool.guard.buffers import as_bytes

_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: parameters, buffers and hooks. They are restored elsewhere, or do not change."""

_MOST_BYTES = 1 << 20
"""Largest size in bytes of a tensor to copy. The counts of a metric are smaller, and buffers are copied elsewhere."""


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules on exit: values, elements of containers, and small tensors.

    Objects of other classes stay the same objects, and changes inside them remain.
    """
    restores = [_restorer(module) for module in model.modules()]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _restorer(module: nn.Module) -> Callable[[], None]:
    attributes = vars(module)
    before = {name: value for name, value in attributes.items() if name not in _OF_TORCH}
    contents = [(value, _copy(value)) for value in before.values() if _is_copied(value)]

    def restore() -> None:
        for name in [name for name in attributes if name not in before and name not in _OF_TORCH]:
            del attributes[name]
        attributes.update(before)
        for value, copy in contents:
            _put_back(value, copy)

    return restore


def _is_copied(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.layout is torch.strided and value.nbytes <= _MOST_BYTES
    return isinstance(value, (dict, list, set, deque))


def _copy(value: Any) -> Any:  # noqa: ANN401  a tensor or a container
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def _put_back(value: Any, copy: Any) -> None:  # noqa: ANN401  as above
    if isinstance(value, Tensor):
        if not torch.equal(as_bytes(value), as_bytes(copy)):
            with torch.no_grad():
                value.copy_(copy)
    elif isinstance(value, (list, deque)):
        value.clear()
        value.extend(copy)
    else:
        value.clear()
        value.update(copy)
