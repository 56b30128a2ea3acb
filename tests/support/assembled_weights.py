"""Assemble the weights that a source describes, with numpy and without the feature that exports them."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.weights import NotExportableError, Piece, Target, Weights, WeightsRequest
from ckpttool.core.verbs.scanning import Tree, scan
from tests.support.trainer_trees import flip

Tensor = tuple[str, tuple[int, ...], bytes]
"""Name of the type in safetensors, shape, and all bytes in row-major order."""

_TORCH = {DType.BF16: torch.bfloat16, DType.F16: torch.float16, DType.F64: torch.float64}


def weights_of(
    root: Path,
    name: str | None = None,
    *,
    replicated: bool = False,
    part: str | None = None,
    is_16bit: bool = False,
) -> Weights:
    """Return the weights of a save; of the newest save without a name.

    Raises:
        NotExportableError: The weights cannot be exported.
    """
    tree = scan(str(root))
    assert isinstance(tree, Tree)
    assert tree.trainer is not None
    checkpoints = tree.inventory.checkpoints
    checkpoint = checkpoints[-1] if name is None else next(save for save in checkpoints if save.name == name)
    request = WeightsRequest(layout=tree.layout.name, is_16bit=is_16bit, is_replicated=replicated, part=part)
    return tree.trainer.weights(tree.storage, checkpoint, request)


def assembled(root: Path, weights: Weights) -> dict[str, Tensor]:
    """Return all tensors; each element must be in exactly one piece, or in equal boxes, and each record intact."""
    records = {piece.record for target in weights.targets for piece in target.pieces if piece.record is not None}
    for record in {*weights.records, *records}:
        data = (root / record.path).read_bytes()[record.begin : record.begin + record.length]
        assert len(data) == record.length, "a record is outside its file"
        assert record.crc32 is None or zlib.crc32(data) == record.crc32, f"damaged: {record}"
    return {target.name: _assembled(root, target) for target in weights.targets}


def _assembled(root: Path, target: Target) -> Tensor:
    shape = (int(np.prod(target.shape, dtype=int)),) if target.flat else target.shape
    whole = np.zeros(shape, f"V{target.dtype.bits // 8}")
    counts = np.zeros(shape, int)
    boxes = set()
    for piece in target.pieces:
        if (piece.at, piece.shape) in boxes:
            continue
        boxes.add((piece.at, piece.shape))
        place = tuple(slice(at, at + size) for at, size in zip(piece.at, piece.shape, strict=True))
        assert counts[place].shape == piece.shape, "a piece is outside its target"
        whole[place] = _elements(root, piece, target.dtype)
        counts[place] += 1
    assert (counts == 1).all(), f"{target.name}: elements in no piece, or in several"
    return target.dtype.value, target.shape, whole.tobytes()


def _elements(root: Path, piece: Piece, dtype: DType) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    """Return the elements of a piece, cast to FP32 if the target has that type."""
    width = piece.dtype.bits // 8
    span = 1 + sum((size - 1) * stride for size, stride in zip(piece.shape, piece.stride, strict=True))
    count = span if 0 not in piece.shape else 0
    end = piece.begin + count * width
    record = piece.record
    assert record is None or record.begin <= piece.begin <= end <= record.begin + record.length, "outside its record"
    elements = np.frombuffer((root / piece.path).read_bytes()[piece.begin : end], f"V{width}")
    box = as_strided(elements, piece.shape, tuple(stride * width for stride in piece.stride))
    if piece.dtype is dtype:
        return box
    assert dtype is DType.F32
    floats = torch.frombuffer(bytearray(box.tobytes()), dtype=_TORCH[piece.dtype]).float()
    return floats.numpy().view("V4").reshape(piece.shape)


def assert_bits_change_no_number(
    folder: Path, seed: str, real: Mapping[str, Tensor], assembled_again: Callable[[], Mapping[str, Tensor]]
) -> None:
    """Flip single bits in a folder's files: each time, the weights are the real ones, or are refused.

    Args:
        folder: The files; each is whole again afterwards.
        seed: The seed of the choice of bits.
        real: The true weights.
        assembled_again: Reads the save and assembles its weights.
    """
    chance = random.Random(seed)  # noqa: S311  no secret
    files = sorted(folder.iterdir())
    for _ in range(40):
        path = chance.choice(files)
        data = path.read_bytes()
        flip(path, chance.randrange(len(data)), chance.randrange(8))
        try:
            mine = assembled_again()
        except (NotExportableError, AssertionError):
            mine = real
        path.write_bytes(data)
        assert mine == real


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
