"""Assemble the weights that a source describes, with numpy and without the feature that exports them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ckpttool.core.domain.weights import Target, Weights, WeightsRequest
from ckpttool.core.verbs.scanning import Tree, scan

Tensor = tuple[str, tuple[int, ...], bytes]
"""Name of the type in safetensors, shape, and all bytes in row-major order."""


def weights_of(root: Path, name: str | None = None, *, replicated: bool = False, part: str | None = None) -> Weights:
    """Return the weights of a save; of the newest save without a name.

    Raises:
        NotExportableError: The weights cannot be exported.
    """
    tree = scan(str(root))
    assert isinstance(tree, Tree)
    assert tree.trainer is not None
    checkpoints = tree.inventory.checkpoints
    checkpoint = checkpoints[-1] if name is None else next(save for save in checkpoints if save.name == name)
    request = WeightsRequest(layout=tree.layout.name, is_replicated=replicated, part=part)
    return tree.trainer.weights(tree.storage, checkpoint, request)


def assembled(root: Path, weights: Weights) -> dict[str, Tensor]:
    """Return all tensors; each element must be in exactly one piece, or in equal boxes."""
    return {target.name: _assembled(root, target) for target in weights.targets}


def _assembled(root: Path, target: Target) -> Tensor:
    width = target.dtype.bits // 8
    shape = (int(np.prod(target.shape, dtype=int)),) if target.flat else target.shape
    whole = np.zeros(shape, f"V{width}")
    counts = np.zeros(shape, int)
    boxes = set()
    for piece in target.pieces:
        assert piece.dtype is target.dtype
        if (piece.at, piece.shape) in boxes:
            continue
        boxes.add((piece.at, piece.shape))
        data = (root / piece.path).read_bytes()[piece.begin :]
        span = 1 + sum((size - 1) * stride for size, stride in zip(piece.shape, piece.stride, strict=True))
        elements = np.frombuffer(data, f"V{width}", count=span if 0 not in piece.shape else 0)
        strides = tuple(stride * width for stride in piece.stride)
        place = tuple(slice(at, at + size) for at, size in zip(piece.at, piece.shape, strict=True))
        assert counts[place].shape == piece.shape, "a piece is outside its target"
        whole[place] = as_strided(elements, piece.shape, strides)
        counts[place] += 1
    assert (counts == 1).all(), f"{target.name}: elements in no piece, or in several"
    return target.dtype.value, target.shape, whole.tobytes()


def tensors_in(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {
        name: (row["dtype"], tuple(row["shape"]), data[begin + row["data_offsets"][0] : begin + row["data_offsets"][1]])
        for name, row in header.items()
    }
