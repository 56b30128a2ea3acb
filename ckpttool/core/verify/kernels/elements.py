"""The elements of a tensor as F64, in pieces, for results that need values instead of bit patterns.

`fold` computes norms and magnitudes several times faster; signs, zeros and the distance of two tensors need values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.contents import ElementStats
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks
from ckpttool.core.verify.kernels.floats import FLOATS
from ckpttool.core.verify.kernels.fold import NumericFold, Scratch, numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_NATIVE = {
    DType.BOOL: "?", DType.U8: "<u1", DType.I8: "<i1", DType.U16: "<u2", DType.I16: "<i2", DType.U32: "<u4",
    DType.I32: "<i4", DType.U64: "<u8", DType.I64: "<i8", DType.F16: "<f2", DType.F32: "<f4", DType.F64: "<f8",
}  # fmt: skip
_EIGHT_BITS = frozenset({DType.F8_E4M3, DType.F8_E5M2})
NUMBERS = frozenset({*_NATIVE, *_EIGHT_BITS, DType.BF16})
"""Types with elements that can be compared as numbers. I64 and U64 are rounded to 53 bits."""

PIECE_ELEMENTS = 1 << 16
"""Number of elements converted to F64 at a time: half a MiB."""


def pieces(
    source: ByteSource, entry: TensorEntry, *, elements: int = PIECE_ELEMENTS, buffer: memoryview | None = None
) -> Iterator[memoryview]:
    """Yield a tensor's bytes in pieces of this many elements, or fewer at the end; each is valid until the next.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    width = elements * entry.dtype.bits // 8
    buffered = bytearray()
    for begin, end in entry.spans:
        for _, block in read_blocks(source, begin, end, buffer=buffer):
            at = 0
            if buffered:
                at = min(width - len(buffered), len(block))
                buffered += block[:at]
                if len(buffered) < width:
                    continue
                yield memoryview(bytes(buffered))
                buffered.clear()
            while len(block) - at >= width:
                yield block[at : at + width]
                at += width
            buffered += block[at:]
    if buffered:
        yield memoryview(bytes(buffered))


def doubles(dtype: DType, data: memoryview) -> Array:
    """Return complete elements as F64.

    Raises:
        KeyError: The type is not in `NUMBERS`.
    """
    np: Any = numpy()
    if dtype in _EIGHT_BITS:
        values = _table(dtype)[np.frombuffer(data, np.uint8)]
    else:
        if dtype is DType.BF16:
            narrow = np.left_shift(np.frombuffer(data, "<u2"), 16, dtype=np.uint32).view(np.float32)
        else:
            narrow = np.frombuffer(data, _NATIVE[dtype])
        with np.errstate(invalid="ignore"):  # caused by signalling NaNs
            values = narrow.astype(np.float64)
    result: Array = values
    return result


@cache
def _table(dtype: DType) -> Array:
    """Return the value of each pattern of an 8-bit type."""
    np, layout = numpy(), FLOATS[dtype]
    half = [
        layout.value(bits) if bits <= layout.largest_finite else np.nan for bits in range(layout.magnitude_mask + 1)
    ]
    if layout.infinity is not None:
        half[layout.infinity] = np.inf
    table: Array = np.array([*half, *(-value for value in half)])
    return table


class Measure:
    """A calculator for the statistics of a file's tensors, which uses the same memory for all of them."""

    def __init__(self, source: ByteSource, passed: Callable[[int], None] | None = None) -> None:
        """Store the open file, and a callback for the bytes of each piece."""
        self._source = source
        self._passed = passed
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._scratch = Scratch(BLOCK_BYTES)

    def stats(self, entry: TensorEntry) -> ElementStats | None:
        """Return the statistics of one tensor, or None if the elements are not numbers, or are scattered.

        Raises:
            OSError: The disk did not answer, or the file was truncated while it was read.
        """
        np: Any = numpy()
        if entry.dtype not in NUMBERS or not (entry.spans or 0 in entry.shape):
            return None
        fold = NumericFold(entry.dtype, self._scratch) if entry.dtype in FLOATS else None
        ends: list[float] = []
        offset = elements = zeros = 0
        squares = 0.0
        for data in pieces(self._source, entry, buffer=self._buffer):
            values = doubles(entry.dtype, data)
            elements += len(values)
            zeros += len(values) - int(np.count_nonzero(values))
            if fold is None:
                squares += float(np.dot(values, values))
            else:
                fold.feed(offset, data)
                offset += len(data)
                if not np.isfinite(values).all():
                    values = values[np.isfinite(values)]
            if len(values):
                ends += (float(values.min()), float(values.max()))
            if self._passed is not None:
                self._passed(len(data))
        measured = None if fold is None else fold.partial().stats(entry.name)
        return ElementStats(
            elements=elements,
            nans=0 if measured is None else measured.nans,
            infinities=0 if measured is None else measured.infinities,
            zeros=zeros,
            least=min(ends, default=None),
            greatest=max(ends, default=None),
            norm=squares**0.5 if measured is None else measured.norm,
        )
