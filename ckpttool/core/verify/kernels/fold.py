"""Statistics of every element of a tensor whose bytes arrive in pieces, at memory speed.

None of these methods needs a compiled extension:

- The maximum as *signed* integers is the largest positive pattern, or, if all are negative, the negative pattern with
  the largest magnitude; the maximum as *unsigned* integers is the negative pattern with the largest magnitude, if there
  is one. The larger magnitude of the two is the absolute maximum, and infinity and NaN are the patterns above all
  numbers.
- Norms are dot products of F32. BF16 is the upper half of an F32: a mask and a shift turn each word into elements of
  two arrays. F16 and the F8 types become F32 by a shift, except for a factor of a power of two, because their exponents
  have a different bias.
"""

from __future__ import annotations

import math
import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.dtype import DType
from ckpttool.core.verify.kernels.floats import FLOATS, FloatLayout
from ckpttool.core.verify.kernels.numeric import Fragment, NumericPartial, settle, units

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

WORDS = 1 << 16
"""32-bit words in one dot product: 256 KiB stay in a core's cache, and F32 sums of this length are accurate to 1e-5."""
EXACT_ELEMENTS = 1 << 14
"""Number of elements computed in F64 at a time if F32 is not enough; limits the memory."""

# Limits for at most WORDS squares in one F32 sum: above, it could overflow; below, the loss from subnormal squares
# could exceed 1e-7 of the sum.
_F32_SAFE = (2.0**-55, 2.0**55)
# The same for F64, where a sum has at most EXACT_ELEMENTS squares; far from both limits.
_F64_SAFE = (2.0**-480, 2.0**480)

# One (mask, shift to the left) for each element in a 32-bit word, and the power of two that is missing afterwards. BF16
# needs no mask if the shift removes the other element; its sign may stay, because squares have no sign.
_LANES: dict[DType, tuple[tuple[tuple[int | None, int], ...], int]] = {
    DType.BF16: (((None, 16), (0xFFFF0000, 0)), 0),
    DType.F16: (((0x7FFF, 13), (0x7FFF0000, -3)), 112),
    DType.F8_E5M2: (((0x7F, 21), (0x7F00, 13), (0x7F0000, 5), (0x7F000000, -3)), 112),
    DType.F8_E4M3: (((0x7F, 20), (0x7F00, 12), (0x7F0000, 4), (0x7F000000, -4)), 120),
}


@cache
def numpy() -> ModuleType:
    """Return numpy, imported on first use."""
    # Its dot product would start one thread per core; the cores are already busy with other files.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy as np

    return np


class Scratch:
    """Memory that all tensors of one worker share (1.6 MiB). Two threads must not use it at the same time."""

    __slots__ = ("aligned", "floats", "words")

    def __init__(self, piece_bytes: int = 1 << 20) -> None:
        """Allocate memory for pieces of up to `piece_bytes` bytes."""
        np = numpy()
        self.aligned: Array = np.empty(piece_bytes // 8 + 1, dtype=np.uint64).view(np.uint8)
        """Space for pieces that do not begin at a multiple of their word size."""
        self.words: Array = np.empty(WORDS, dtype=np.uint32)
        self.floats: Array = self.words.view(np.float32)


class NumericFold:
    """Statistics of one tensor. `feed` it the tensor's bytes in any pieces, then read `partial`."""

    __slots__ = ("_dtype", "_fragments", "_layout", "_np", "_scratch", "_seen", "_signed", "_unsigned")

    def __init__(self, dtype: DType, scratch: Scratch) -> None:
        """Store the type, and the memory to use.

        Raises:
            KeyError: `dtype` is not in `FLOATS`.
        """
        self._dtype = dtype
        self._layout: FloatLayout = FLOATS[dtype]
        self._np: Any = numpy()
        self._unsigned: np.dtype[Any] = self._np.dtype(f"<u{self._layout.nbytes}")
        self._signed: np.dtype[Any] = self._np.dtype(f"<i{self._layout.nbytes}")
        self._scratch = scratch
        self._fragments: list[Fragment] = []
        self._seen = _Seen()

    def feed(self, offset: int, data: memoryview) -> None:
        """Process bytes of the tensor.

        Args:
            offset: The position of the bytes, in bytes from the start of the tensor.
            data: The bytes, at most as many as the scratch has room for; the caller may overwrite these afterwards.
        """
        nbytes = self._layout.nbytes
        lead = min(-offset % nbytes, len(data))
        tail = len(data) - (len(data) - lead) % nbytes
        if lead:
            self._fragment(offset, bytes(data[:lead]))
        if lead < tail:
            self._measure(data[lead:tail])
        if tail < len(data):
            self._fragment(offset + tail, bytes(data[tail:]))

    def partial(self) -> NumericPartial:
        """Return the statistics so far."""
        part = NumericPartial(
            dtype=self._dtype,
            elements=self._seen.elements,
            nans=self._seen.nans,
            infinities=self._seen.infinities,
            absmax_bits=self._seen.absmax_bits,
            squares=self._seen.squares,
        )
        if not self._fragments:
            return part
        complete, fragments = settle(self._fragments, self._layout.nbytes)
        for element in complete:
            part = part.with_element(element)
        return part.with_fragments(fragments)

    def _fragment(self, offset: int, data: bytes) -> None:
        # Fragments are left to `partial`: there are at most two per block of the file.
        self._fragments.append((offset, data))

    def _measure(self, data: memoryview) -> None:
        """Add complete elements to the statistics."""
        bits: Array = self._np.frombuffer(data, dtype=self._unsigned)
        if not bits.flags.aligned:
            bits = self._aligned(bits)
        counts, layout = self._seen, self._layout
        counts.elements += len(bits)
        highest_of = self._np.maximum.reduce  # `bits.max()` is a slower call of the same function
        highest = max(
            int(highest_of(bits.view(self._signed))) & layout.magnitude_mask,
            int(highest_of(bits)) & layout.magnitude_mask,
        )
        if highest > layout.largest_finite:
            self._measure_sick(bits)
        elif highest:
            counts.absmax_bits = max(counts.absmax_bits, highest)
            counts.squares += self._squares(bits, layout.value(highest))

    def _aligned(self, bits: Array) -> Array:
        """Copy elements to an aligned address; numpy is slow on unaligned addresses."""
        copy = self._scratch.aligned[: bits.nbytes]
        copy[:] = bits.view(self._np.uint8)
        return copy.view(bits.dtype)

    def _measure_sick(self, bits: Array) -> None:
        """Count NaNs and infinities, and measure the other elements. This is slow, but rare."""
        np, layout, counts = self._np, self._layout, self._seen
        for begin in range(0, len(bits), EXACT_ELEMENTS):
            magnitudes = bits[begin : begin + EXACT_ELEMENTS] & bits.dtype.type(layout.magnitude_mask)
            finite = magnitudes[magnitudes <= layout.largest_finite]
            infinities = 0 if layout.infinity is None else int(np.count_nonzero(magnitudes == layout.infinity))
            counts.infinities += infinities
            counts.nans += len(magnitudes) - len(finite) - infinities
            highest = int(finite.max()) if len(finite) else 0
            counts.absmax_bits = max(counts.absmax_bits, highest)
            counts.squares += self._exact_squares(finite, layout.value(highest))

    def _squares(self, bits: Array, absmax: float) -> int:
        """Return the sum of squares, in units, of finite elements of which `absmax` is the largest."""
        if self._dtype is DType.F64 or not _F32_SAFE[0] <= absmax <= _F32_SAFE[1]:
            return self._exact_squares(bits, absmax)
        per_word = 4 // bits.itemsize
        full_length = len(bits) // per_word * per_word
        bit_words = bits[:full_length].view(self._np.uint32)
        if not bit_words.flags.aligned:
            bit_words = self._aligned(bit_words)
        total = self._exact_squares(bits[full_length:], absmax) if full_length < len(bits) else 0
        for begin in range(0, len(bit_words), WORDS):
            part = bit_words[begin : begin + WORDS]
            total += self._dot(part.view(self._np.float32)) if self._dtype is DType.F32 else self._lanes(part)
        return total

    def _lanes(self, lanes_in: Array) -> int:
        """Return the sum of squares, in units, of the two or four elements in each word."""
        np = self._np
        lanes, missing = _LANES[self._dtype]
        turned, floats = self._scratch.words[: len(lanes_in)], self._scratch.floats[: len(lanes_in)]
        total = 0
        for mask, shift in lanes:
            source = lanes_in if mask is None else np.bitwise_and(lanes_in, np.uint32(mask), out=turned)
            if shift > 0:
                np.left_shift(source, np.uint32(shift), out=turned)
            elif shift < 0:
                np.right_shift(source, np.uint32(-shift), out=turned)
            if missing:
                # Not after the dot product, because the squares of such small numbers are zero in F32.
                np.multiply(floats, np.float32(2.0**missing), out=floats)
            total += self._dot(floats)
        return total

    def _dot(self, floats: Array) -> int:
        return units(float(self._np.dot(floats, floats)))

    def _exact_squares(self, bits: Array, absmax: float) -> int:
        """Return the sum of squares, in units, added in F64 and scaled if the squares would overflow or vanish."""
        np = self._np
        scale = 0 if absmax == 0 or _F64_SAFE[0] <= absmax <= _F64_SAFE[1] else math.frexp(absmax)[1]
        total = 0
        for begin in range(0, len(bits) if absmax else 0, EXACT_ELEMENTS):
            values = self._doubles(bits[begin : begin + EXACT_ELEMENTS])
            if scale:
                values = np.ldexp(values, -scale)
            total += units(float(np.dot(values, values)), 2 * scale)
        return total

    def _doubles(self, bits: Array) -> Array:
        """Return finite elements as F64, with or without the sign."""
        np = self._np
        match self._dtype:
            case DType.F64:
                doubles = bits.view("<f8")
            case DType.F32:
                doubles = bits.view("<f4").astype(np.float64)
            case DType.F16:
                doubles = bits.view("<f2").astype(np.float64)
            case DType.BF16:
                doubles = np.left_shift(bits, 16, dtype=np.uint32).view(np.float32).astype(np.float64)
            case _:
                doubles = _table(self._dtype)[bits & np.uint8(self._layout.magnitude_mask)]
        result: Array = doubles
        return result


class _Seen:
    """The counters of a fold."""

    __slots__ = ("absmax_bits", "elements", "infinities", "nans", "squares")

    def __init__(self) -> None:
        self.elements = self.nans = self.infinities = self.absmax_bits = self.squares = 0


@cache
def _table(dtype: DType) -> Array:
    """Return the value of each finite magnitude of an 8-bit type."""
    layout = FLOATS[dtype]
    np = numpy()
    table: Array = np.array([layout.value(magnitude) for magnitude in range(layout.largest_finite + 1)])
    return table
