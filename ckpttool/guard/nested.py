"""Tensors in nested values such as batches, which contain dicts, lists and tuples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over ranks, so that reducing it involves all of them.

    Nothing is imported for this: if `DTensor` was never imported, no tensor is sharded.
    """
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor. Any other tensor is returned unchanged."""
    return cast("Any", tensor).to_local() if is_sharded(tensor) else tensor  # a DTensor


def form(tensor: Tensor) -> str:
    """Return the type and shape for display, as in `float32 3×4`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape)) or 'scalar'}"


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield every tensor in a nested value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def named_tensors(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch with their paths, as in `inputs.labels` or `[0]`.

    A single tensor has the path `batch`.
    """
    if isinstance(value, Tensor):
        yield path or "batch", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from named_tensors(item, f"{path}[{index}]")


def map_tensors(value: object, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401  of the type of the value
    """Return the value with each tensor replaced. Other mappings become dicts. Named tuples keep their class."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: map_tensors(item, change) for key, item in value.items()}
        return OrderedDict(items) if type(value) is OrderedDict else items
    if isinstance(value, list):
        return [map_tensors(item, change) for item in value]
    if isinstance(value, tuple) and type(value) is not torch.Size:
        make = getattr(value, "_make", tuple)  # a named tuple keeps its class
        return make(map_tensors(item, change) for item in value)
    return value
