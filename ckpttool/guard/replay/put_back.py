"""Replacement of a training run's batches by captured ones. Each tensor keeps its identity but gets other contents.

The training code's own names for its batch then refer to the captured values, whatever the source of its batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ckpttool.guard.nested import form
from ckpttool.guard.state_tree import Sharded
from ckpttool.guard.tensor_file import TYPES, block, copied


class OtherStructure(ValueError):  # noqa: N818  the name is a statement
    """Error for a batch whose structure differs from the captured one."""


class Exchange:
    """The tensors whose contents were replaced, with their original contents."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Tensor, Tensor]] = []

    def put(self, current: object, captured: object, path: str = "batch") -> bool:
        """Replace the contents of a batch by captured ones, in place, if they differ.

        Args:
            current: The batch of the training run.
            captured: The captured batch, with plain dicts, lists and tuples.
            path: Its name for error messages.

        Returns:
            Whether anything differed.

        Raises:
            OtherStructure: The batch has other keys, lengths, types or dimensions, or cannot be changed in place.
        """
        if isinstance(current, Tensor) and isinstance(captured, Tensor):
            return self._put_tensor(current, captured, path)
        if isinstance(current, Mapping) and isinstance(captured, Mapping):
            if current.keys() != captured.keys():
                keys = ", ".join(sorted(map(str, current.keys() ^ captured.keys()))[:3])
                raise OtherStructure(f"{path} has other keys than the captured batch: {keys}")
            changes = [self._put_item(current, key, captured[key], f"{path}.{key}") for key in captured]
            return any(changes)
        if isinstance(current, (list, tuple)) and isinstance(captured, (list, tuple)):
            if len(current) != len(captured):
                raise OtherStructure(f"{path} has {len(current)} items, the captured one {len(captured)}")
            changes = [self._put_item(current, key, captured[key], f"{path}[{key}]") for key in range(len(captured))]
            return any(changes)
        if not _is_equal(current, captured):
            raise OtherStructure(f"{path} is {_kind(current)}, and the captured one is {_kind(captured)}")
        return False

    def _put_item(self, holder: Any, key: Any, captured: object, path: str) -> bool:  # noqa: ANN401  a batch of the user's
        try:
            return self.put(holder[key], captured, path)
        except OtherStructure:
            # A value such as a text or a number can only be replaced, where its holder allows that.
            if isinstance(holder[key], (Mapping, list, tuple, Tensor)) or not hasattr(holder, "__setitem__"):
                raise
        holder[key] = captured
        return True

    def _put_tensor(self, current: Tensor, captured: Tensor, path: str) -> bool:
        if (current.dtype, current.dim()) != (captured.dtype, captured.dim()):
            raise OtherStructure(f"{path} is {form(current)}, and the captured one is {form(captured)}")
        if has_same_bits(current, captured):
            return False
        if current.grad_fn is not None:
            raise OtherStructure(f"{path} is computed from weights, and differs from the captured one")
        original = current.data
        try:
            current.data = on_device(captured, current.device)
        except RuntimeError as error:
            raise OtherStructure(f"{path} cannot be replaced: {error}") from None
        self._replaced.append((current, original))
        return True

    def undo(self) -> None:
        """Restore the original contents of every tensor, because it may be a part of the training data."""
        while self._replaced:
            tensor, original = self._replaced.pop()
            tensor.data = original


def on_device(captured: Tensor, device: torch.device) -> Tensor:
    """Return a captured tensor in separate memory. With a file's alignment, a kernel may sum in another order."""
    stored = captured.detach()
    return copied(stored) if stored.device == device else stored.to(device)


def has_same_bits(current: Tensor, captured: Tensor) -> bool:
    """Return whether two tensors have the same type, shape and bytes."""
    if (current.dtype, current.shape) != (captured.dtype, captured.shape) or current.dtype not in TYPES:
        return False
    if current.layout is not torch.strided or captured.layout is not torch.strided:
        return False
    return block(current) == block(captured)


def _is_equal(current: object, captured: object) -> bool:
    """Return whether two plain values are equal. NaN equals NaN."""
    if isinstance(captured, Sharded):
        return False
    if hasattr(captured, "tobytes") and hasattr(current, "tobytes"):  # numpy's
        first, second = cast("Any", current), cast("Any", captured)
        return bool(first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes())
    if type(current) is float and type(captured) is float and math.isnan(captured):
        return math.isnan(current)
    return type(current) is type(captured) and bool(current == captured)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if hasattr(value, "__len__") else f"{value!r:.40}"
