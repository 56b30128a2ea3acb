"""Tensors that lie in FP8: the largest code of each block, and how many codes are no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.verify.kernels.floats import FLOATS
from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.fp8.read.kernel_sample import data_of, matrix_of, parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class Codes(NamedTuple):
    """What a pass over codes saw."""

    largest: Array
    """Of each block, without its sign, by its row and column of blocks; NaN and infinity count as zero."""
    nans: int
    infinities: int


def largest_codes(
    source: ByteSource,
    entry: TensorEntry,
    *,
    block: tuple[int, int],
    buffer: memoryview,
    passed: Callable[[int], None] | None = None,
) -> Codes:
    """Read a tensor of eight bits once.

    Args:
        source: The open file.
        entry: Which; its type is in `FLOATS`.
        block: Rows and columns that share a scale; those at the edges may be smaller.
        buffer: Memory to reuse, of at least `BLOCK_BYTES`.
        passed: Told after each piece how many bytes it had.

    Raises:
        OSError: The disk did not answer, or the file was cut meanwhile.
    """
    np: Any = numpy()
    matrix, layout = matrix_of(entry.name, entry.shape), FLOATS[entry.dtype]
    height, width = block
    largest = np.zeros((-(-matrix.rows // height), -(-matrix.columns // width)), np.uint8)
    nans = infinities = begin = 0
    for data in data_of(source, entry, matrix.columns, buffer):
        codes = np.bitwise_and(np.frombuffer(data, np.uint8), np.uint8(layout.magnitude_mask))
        bad = codes > layout.largest_finite
        if bad.any():
            endless = int(np.count_nonzero(codes == layout.infinity)) if layout.infinity is not None else 0
            infinities += endless
            nans += int(np.count_nonzero(bad)) - endless
            codes[bad] = 0
        for row, column, part in parts_of(codes, begin, matrix.columns):
            down, across = _starts(row, len(part), height), _starts(column, part.shape[1], width)
            blocks = part if height == 1 else np.maximum.reduceat(part, down, axis=0)
            blocks = (
                blocks.max(axis=1, keepdims=True) if len(across) == 1 else np.maximum.reduceat(blocks, across, axis=1)
            )
            region = largest[row // height :, column // width :][: blocks.shape[0], : blocks.shape[1]]
            np.maximum(region, blocks, out=region)
        begin += len(codes)
        if passed is not None:
            passed(len(data))
    return Codes(largest, nans, infinities)


def _starts(begin: int, length: int, size: int) -> list[int]:
    """Return where blocks begin in a stretch, counted from its own beginning."""
    return [0, *range(size - begin % size, length, size)]
