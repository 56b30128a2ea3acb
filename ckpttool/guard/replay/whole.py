"""A sharded weight put together from the parts of all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ckpttool.guard.state_tree import Sharded


def put_together(parts: Sequence[Sharded]) -> Tensor:
    """Return the whole tensor.

    Args:
        parts: Of all ranks of the mesh, in their order; the ranks fill the mesh row by row.

    Raises:
        ValueError: A part is missing, the parts are of different tensors, or one has another size than its place.
    """
    first = parts[0]
    if {(part.shape, part.mesh_shape, part.placements) for part in parts} != {
        (first.shape, first.mesh_shape, first.placements)
    }:
        raise ValueError("its parts are of different tensors")
    if len(parts) != math.prod(first.mesh_shape):
        raise ValueError(f"{math.prod(first.mesh_shape)} parts were saved, and {len(parts)} are here")
    if math.prod(first.shape) > sum(part.local.numel() for part in parts):
        raise ValueError(f"its parts hold fewer elements than its shape {first.shape}")
    tensor = torch.empty(first.shape, dtype=first.local.dtype)
    for place, part in zip(product(*map(range, first.mesh_shape)), parts, strict=True):
        target = tensor
        for axis, placement in enumerate(first.placements):
            if placement != "replicate":
                target = _chunk(target, int(placement.removeprefix("shard:")), first.mesh_shape[axis], place[axis])
        if target.shape != part.local.shape:
            raise ValueError(f"a part has the shape {tuple(part.local.shape)}, and its place {tuple(target.shape)}")
        target.copy_(part.local.detach())
    return tensor.requires_grad_(first.local.requires_grad)


def _chunk(tensor: Tensor, dimension: int, count: int, place: int) -> Tensor:
    """Return what falls to a place where a dimension is cut as `torch.chunk` does: the last may have less, or none."""
    length = tensor.shape[dimension]
    length_per_part = -(-length // count)
    begin = min(place * length_per_part, length)
    return tensor.narrow(dimension, begin, min(length_per_part, length - begin))
