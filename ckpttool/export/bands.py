"""Elements of a tensor in row-major order, in bands of bounded size, read from the places of its pieces.

A band is a box of the tensor whose elements are contiguous in the output: some rows, or a part of one row. Memory is
bounded by one band for the output and one for a part of a file, whatever the sizes of the tensors and the files.

Elements are moved as words of 1, 2, 4 or 8 bytes, so every type is copied bit by bit; only a requested cast computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.weights import Piece, Target
from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.export.cover import is_dense, span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckpttool.export.sources import Sources

BAND_BYTES = 32 << 20
"""Size of a band in bytes: large enough for a disk, and small beside one layer of a model."""
_SMALL_SPAN = 64 << 10
"""Bytes that are read at once even if most of them are not needed: as fast as a smaller read."""
_WORDS = {8: "u1", 16: "<u2", 32: "<u4", 64: "<u8"}

Box = tuple[tuple[int, int], ...]
"""First element and end of each axis."""
Fill = Callable[[int, memoryview], None]
"""Fills a buffer from an absolute byte of a file."""


def blocks(target: Target, sources: Sources, *, most: int = BAND_BYTES) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in row-major order; each block is valid until the next.

    Args:
        target: A tensor whose pieces were checked by `covered`.
        sources: The source files.
        most: Size of a band in bytes.

    Raises:
        NotExportableError: A record is damaged, or a file has changed or cannot be read.
    """
    if not target.pieces:
        return  # no elements
    widest = max(target.dtype.bits, *(piece.dtype.bits for piece in target.pieces)) // 8
    shape = (elements_in(target.shape),) if target.flat else target.shape
    readers = [(piece, sources.reader(piece)) for piece in target.pieces]
    np: Any = numpy()
    limit = max(1, most // widest)
    buffer = np.empty(min(elements_in(shape), limit), _WORDS[target.dtype.bits])
    copy = _Copy(target.dtype, most)
    for band in bands(shape, limit):
        sizes = tuple(end - begin for begin, end in band)
        out = buffer[: elements_in(sizes)].reshape(sizes)
        for piece, read in readers:
            box = _common(band, piece)
            if box is not None:
                copy.place(out, band, box, piece, read)
        yield out.reshape(-1).data.cast("B")


def bands(shape: tuple[int, ...], most: int) -> Iterator[Box]:
    """Divide a tensor into boxes of at most `most` elements that are contiguous and in row-major order."""
    axis, inner = 0, elements_in(shape[1:])
    while axis < len(shape) - 1 and inner > most:
        axis += 1
        inner = elements_in(shape[axis + 1 :])
    rows = max(1, most // max(1, inner))
    rest = tuple((0, size) for size in shape[axis + 1 :])
    for outer in _indices(shape[:axis]):
        for begin in range(0, shape[axis], rows):
            yield (*outer, (begin, min(begin + rows, shape[axis])), *rest)


def _indices(sizes: tuple[int, ...]) -> Iterator[Box]:
    """Yield all boxes of one element, lazily, because a size may be any number."""
    if not sizes:
        yield ()
        return
    for index in range(sizes[0]):
        for inner in _indices(sizes[1:]):
            yield ((index, index + 1), *inner)


def _common(band: Box, piece: Piece) -> Box | None:
    """Return the part of a band that is in a piece, in the tensor's coordinates."""
    box = []
    for (begin, end), at, size in zip(band, piece.at, piece.shape, strict=True):
        low, high = max(begin, at), min(end, at + size)
        if low >= high:
            return None
        box.append((low, high))
    return tuple(box)


class _Copy:
    """Copies boxes from files to their places in bands of one tensor."""

    def __init__(self, dtype: DType, most: int) -> None:
        self._dtype, self._most = dtype, most
        self._spare = bytearray()
        """Buffer for parts of files that are not in the order of the band."""

    def place(self, out: NDArray[Any], band: Box, box: Box, piece: Piece, read: Fill) -> None:
        """Copy a box from a file to its place in a band."""
        width = piece.dtype.bits // 8
        for part in _readable(box, piece.stride, self._most // width, max(1, _SMALL_SPAN // width)):
            into = out[tuple(slice(begin - low, end - low) for (begin, end), (low, _) in zip(part, band, strict=True))]
            first = sum((begin - at) * step for (begin, _), at, step in zip(part, piece.at, piece.stride, strict=True))
            begin = piece.begin + first * width
            if piece.dtype is self._dtype and into.flags.c_contiguous and is_dense(into.shape, piece.stride):
                read(begin, into.reshape(-1).data.cast("B"))
            else:
                self._rearrange(into, piece, begin, read)

    def _rearrange(self, into: NDArray[Any], piece: Piece, begin: int, read: Fill) -> None:
        """Copy elements that are stored in a different order or type than in the band."""
        np: Any = numpy()
        width = piece.dtype.bits // 8
        needed = span(into.shape, piece.stride) * width
        if len(self._spare) < needed:
            self._spare = bytearray(needed)
        view = memoryview(self._spare)[:needed]
        read(begin, view)
        stored = np.frombuffer(view, _WORDS[piece.dtype.bits])
        steps = tuple(step * width for step in piece.stride)
        elements = np.lib.stride_tricks.as_strided(stored, into.shape, steps, writeable=False)
        if piece.dtype is not self._dtype:
            from ckpttool.export.casts import cast

            elements = cast(np.ascontiguousarray(elements).reshape(-1), piece.dtype, self._dtype).reshape(into.shape)
        into[...] = elements


def _readable(box: Box, stride: tuple[int, ...], most: int, small: int) -> Iterator[Box]:
    """Divide a box until each part is short in the file, and most bytes of a long part are needed."""
    sizes = tuple(end - begin for begin, end in box)
    length = span(sizes, stride)
    if length <= small or (length <= most and length <= 2 * prod(sizes)) or prod(sizes) == 1:
        yield box
        return
    axis = max((number for number, size in enumerate(sizes) if size > 1), key=lambda number: stride[number])
    begin, end = box[axis]
    middle = (begin + end) // 2
    for half in ((begin, middle), (middle, end)):
        yield from _readable((*box[:axis], half, *box[axis + 1 :]), stride, most, small)
