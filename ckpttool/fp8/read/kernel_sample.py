"""The largest magnitude of each row and column, and sample tiles, from one pass over a tensor."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks
from ckpttool.core.verify.kernels.elements import pieces
from ckpttool.core.verify.kernels.floats import FLOATS, FloatLayout
from ckpttool.core.verify.kernels.fold import numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SIDE = 128
"""Number of rows and columns of a tile, which is a block of the block-wise recipes."""

FEWEST_TILES, MOST_TILES = 16, 64
_ELEMENTS_A_TILE = 1 << 22
"""Number of elements per further tile in the sample."""

_TILES_TOGETHER = 256
"""Number of tiles in memory at a time if all are checked, which is 16 MiB of F32."""

_WHOLE = 1 << 20
"""Maximum number of elements of a vector to check completely."""

_STACK = 3
"""Number of dimensions of a stack of matrices. A 2-D kernel has four."""
_LEAST_WIDTH = 16
"""Minimum number of columns of a matrix in a stack. One-dimensional kernels are narrower."""

_LONGEST = 1 << 23
"""Maximum number of rows or columns of a matrix. A larger matrix counts as a vector, to limit the memory."""

_GOLDEN = 0.6180339887498949

FLOATING = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
"""Supported data types."""


class Matrix(NamedTuple):
    """A tensor as rows and columns. A vector is split into rows of 128, of which the last may be shorter."""

    rows: int
    columns: int
    is_matrix: bool

    @property
    def tiles(self) -> tuple[int, int]:
        """Number of tiles vertically and horizontally."""
        return -(-self.rows // SIDE), -(-self.columns // SIDE)


class Sample(NamedTuple):
    """The results of a pass over a tensor.

    Magnitudes are bit patterns of the stored type without the sign. NaN and infinity are replaced by zero.
    """

    matrix: Matrix
    row_max: Array
    column_max: Array
    places: list[tuple[int, int]]
    """Positions of the tiles: the row of tiles, and the column of tiles."""
    tiles: Array
    """One tile of 128 x 128 for each place, padded with zeros."""
    nans: int
    infinities: int


def matrix_of(name: str, shape: tuple[int, ...]) -> Matrix:
    """Return the matrix shape of a tensor: one row per output; a stack of experts has the rows of all its experts."""
    elements = elements_in(shape)
    if len(shape) < 2 or elements == 0:  # noqa: PLR2004  a vector has one dimension
        return Matrix(-(-elements // SIDE), SIDE, is_matrix=False)
    is_stack = len(shape) == _STACK and shape[-1] >= _LEAST_WIDTH and "conv" not in name
    columns = shape[-1] if is_stack else elements // shape[0]
    if max(columns, elements // columns) > _LONGEST:
        return Matrix(-(-elements // SIDE), SIDE, is_matrix=False)
    return Matrix(elements // columns, columns, is_matrix=True)


def chosen(matrix: Matrix) -> list[tuple[int, int]]:
    """Return the tiles to check: all if there are few, otherwise a fixed spread.

    Source:
        Multiples of the golden section, modulo one, never leave a gap much larger than another.
    """
    down, across = matrix.tiles
    count, elements = down * across, matrix.rows * matrix.columns
    most = min(MOST_TILES, max(FEWEST_TILES, elements // _ELEMENTS_A_TILE))
    if count <= most or not (matrix.is_matrix or elements > _WHOLE):
        return [divmod(at, across) for at in range(count)]
    picked = {math.floor(count * (at * _GOLDEN % 1.0)) for at in range(most)}
    return [divmod(at, across) for at in sorted(picked)]


def take(
    source: ByteSource,
    entry: TensorEntry,
    *,
    places: list[tuple[int, int]] | None = None,
    buffer: memoryview,
    passed: Callable[[int], None] | None = None,
) -> Sample:
    """Read a tensor in one pass.

    Args:
        source: The open file.
        entry: The tensor. Its type is in `FLOATING`.
        places: The tiles to collect, or None for those that `chosen` returns.
        buffer: Memory to reuse, of at least `BLOCK_BYTES`.
        passed: Called after each piece with its size in bytes.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    np: Any = numpy()
    matrix = matrix_of(entry.name, entry.shape)
    places = chosen(matrix) if places is None else places
    layout = FLOATS[entry.dtype]
    kind = np.dtype(f"<u{layout.nbytes}")
    row_max, column_max = np.zeros(matrix.rows, kind), np.zeros(matrix.columns, kind)
    tiles = np.zeros((len(places), SIDE, SIDE), kind)
    spans_by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, (down, across) in enumerate(places):
        spans_by_row[down].append((across * SIDE, at))
    nans = infinities = begin = 0
    for data in data_of(source, entry, matrix.columns, buffer):
        patterns = np.frombuffer(data, kind)
        patterns = np.bitwise_and(patterns, kind.type(layout.magnitude_mask), out=None if data.readonly else patterns)
        for row, column, part in parts_of(patterns, begin, matrix.columns):
            across, down = part.max(axis=1), part.max(axis=0)
            if down.max() > layout.largest_finite:
                more_nans, more_infinities = zero_nonfinite(part, layout)
                nans, infinities = nans + more_nans, infinities + more_infinities
                across, down = part.max(axis=1), part.max(axis=0)
            np.maximum(row_max[row : row + len(part)], across, out=row_max[row : row + len(part)])
            np.maximum(column_max[column : column + len(down)], down, out=column_max[column : column + len(down)])
            _keep(tiles, spans_by_row, part, row, column)
        begin += len(patterns)
        if passed is not None:
            passed(len(data))
    return Sample(matrix, row_max, column_max, places, tiles, nans, infinities)


def zero_nonfinite(magnitudes: Array, layout: FloatLayout) -> tuple[int, int]:
    """Set NaN and infinities in bit patterns without a sign to zero, and return how many there were of each."""
    np: Any = numpy()
    bad = magnitudes > layout.largest_finite
    infinities = 0 if layout.infinity is None else int(np.count_nonzero(magnitudes == layout.infinity))
    nans = int(np.count_nonzero(bad)) - infinities
    magnitudes[bad] = 0
    return nans, infinities


def every_tile(
    source: ByteSource, entry: TensorEntry, *, buffer: memoryview, passed: Callable[[int], None] | None = None
) -> Iterator[tuple[tuple[int, int], Array]]:
    """Yield each tile of a tensor with its place, keeping some MiB in memory at a time.

    Tiles have magnitudes as in `Sample`.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    matrix = matrix_of(entry.name, entry.shape)
    down, across = matrix.tiles
    step = max(1, _TILES_TOGETHER // max(across, 1))
    for first in range(0, down, step):
        part = rows_of(entry, first * SIDE, min((first + step) * SIDE, matrix.rows))
        places = [(row, column) for row in range(min(step, down - first)) for column in range(across)]
        for at in range(0, len(places), _TILES_TOGETHER):
            sample = take(source, part, places=places[at : at + _TILES_TOGETHER], buffer=buffer, passed=passed)
            for (row, column), tile in zip(sample.places, sample.tiles, strict=True):
                yield (first + row, column), tile


def rows_of(entry: TensorEntry, first: int, last: int) -> TensorEntry:
    """Return some rows of a tensor, as in `matrix_of`, as a separate tensor."""
    matrix = matrix_of(entry.name, entry.shape)
    width, elements = entry.dtype.bits // 8, elements_in(entry.shape)
    begin, end = first * matrix.columns, min(last * matrix.columns, elements)
    spans, at = [], 0
    for start, stop in entry.spans:
        begin_at, right = max(begin * width, at), min(end * width, at + stop - start)
        if begin_at < right:
            spans.append((start + begin_at - at, start + right - at))
        at += stop - start
    shape = (last - first, matrix.columns) if matrix.is_matrix else (end - begin,)
    return replace(entry, shape=shape, spans=tuple(spans))


def data_of(source: ByteSource, entry: TensorEntry, columns: int, buffer: memoryview) -> Iterator[memoryview]:
    """Yield a tensor's bytes in pieces of complete rows, if these fit into the buffer and the tensor is contiguous."""
    row = columns * entry.dtype.bits // 8
    if len(entry.spans) == 1:
        size = max(BLOCK_BYTES // row, 1) * row if row <= BLOCK_BYTES else BLOCK_BYTES
        for _, block in read_blocks(source, *entry.spans[0], buffer=buffer, size=size):
            yield block
    else:
        yield from pieces(source, entry, buffer=buffer)


def parts_of(patterns: Array, begin: int, columns: int) -> Iterator[tuple[int, int, Array]]:
    """Yield parts of a piece as (row, column, matrix): the end of a row, complete rows, and the beginning of a row."""
    row, column = divmod(begin, columns)
    at = 0
    if column:
        at = min(columns - column, len(patterns))
        yield row, column, patterns[:at].reshape(1, -1)
        row += 1
    full_rows = (len(patterns) - at) // columns
    if full_rows:
        yield row, 0, patterns[at : at + full_rows * columns].reshape(full_rows, columns)
        row, at = row + full_rows, at + full_rows * columns
    if at < len(patterns):
        yield row, 0, patterns[at:].reshape(1, -1)


def _keep(tiles: Array, spans_by_row: dict[int, list[tuple[int, int]]], part: Array, row: int, column: int) -> None:
    """Copy the overlap of a part with the tiles of the sample."""
    height, width = part.shape
    for down in range(row // SIDE, (row + height - 1) // SIDE + 1):
        first, last = max(row, down * SIDE), min(row + height, (down + 1) * SIDE)
        for offset, at in spans_by_row.get(down, ()):
            begin, end = max(column, offset), min(column + width, offset + SIDE)
            if begin < end:
                tiles[at, first - down * SIDE : last - down * SIDE, begin - offset : end - offset] = part[
                    first - row : last - row, begin - column : end - column
                ]


def magnitudes(patterns: Array, dtype: DType, *, as_stored: bool) -> Array:
    """Return the F32 values of patterns without a sign. Unless `as_stored`, 32 bits and more are rounded to BF16."""
    np: Any = numpy()
    if dtype is DType.BF16:
        values = np.left_shift(patterns, 16, dtype=np.uint32).view(np.float32)
    elif dtype is DType.F16:
        values = patterns.view("<f2").astype(np.float32)
    else:
        values = np.minimum(patterns.view(f"<f{patterns.itemsize}"), np.finfo(np.float32).max).astype(np.float32)
        if not as_stored:
            bits = values.view(np.uint32)
            parity = (bits >> 16) & 1
            bits = np.minimum((bits + (0x7FFF + parity)) & 0xFFFF0000, 0x7F7F0000)  # nothing becomes infinite
            values = bits.astype(np.uint32).view(np.float32)
    result: Array = values
    return result
