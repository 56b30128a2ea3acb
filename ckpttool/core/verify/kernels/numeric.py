"""Statistics of the elements of a tensor: the values, and the rules for joining partial results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.verdict import TensorStat
from ckpttool.core.verify.kernels.floats import FLOATS

SQUARE_UNIT_BITS = 2148
"""Sums of squares are integers in units of 2**-2148, the square of the smallest F64.

Addition of integers is associative, unlike that of floats, so the results are bit-identical regardless of how workers
share a tensor.
"""

_SMALLEST_NORMAL = {dtype: layout.value(layout.smallest_normal) for dtype, layout in FLOATS.items()}

Fragment = tuple[int, bytes]
"""(offset in the tensor, bytes) of an incomplete element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericPartial:
    """Statistics of a part of a tensor. Parts can be joined in any order and grouping, with the same result."""

    dtype: DType
    elements: int = 0
    """Number of complete elements."""
    nans: int = 0
    infinities: int = 0
    absmax_bits: int = 0
    """Magnitude (bit pattern without the sign) of the largest finite element."""
    squares: int = 0
    """Sum of the squares of the finite elements, in units of 2**-SQUARE_UNIT_BITS."""
    fragments: tuple[Fragment, ...] = ()
    """Bytes of elements that are split between parts, by offset."""

    def join(self, other: NumericPartial) -> NumericPartial:
        """Return the statistics of both parts.

        Raises:
            ValueError: The parts have different types.
        """
        if self.dtype is not other.dtype:
            raise ValueError(f"parts of one tensor differ in type: {self.dtype.value} and {other.dtype.value}")
        added = NumericPartial(
            dtype=self.dtype,
            elements=self.elements + other.elements,
            nans=self.nans + other.nans,
            infinities=self.infinities + other.infinities,
            absmax_bits=max(self.absmax_bits, other.absmax_bits),
            squares=self.squares + other.squares,
        )
        complete, fragments = settle((*self.fragments, *other.fragments), FLOATS[self.dtype].nbytes)
        for element in complete:
            added = added.with_element(element)
        return added.with_fragments(fragments)

    def with_fragments(self, fragments: tuple[Fragment, ...]) -> NumericPartial:
        """Return a copy with these fragments instead."""
        return NumericPartial(
            dtype=self.dtype,
            elements=self.elements,
            nans=self.nans,
            infinities=self.infinities,
            absmax_bits=self.absmax_bits,
            squares=self.squares,
            fragments=fragments,
        )

    def with_element(self, element: bytes) -> NumericPartial:
        """Return a copy with one more element, given as bytes, and without fragments."""
        layout = FLOATS[self.dtype]
        magnitude = int.from_bytes(element, "little") & layout.magnitude_mask
        is_infinite = magnitude == layout.infinity
        is_finite = magnitude <= layout.largest_finite
        return NumericPartial(
            dtype=self.dtype,
            elements=self.elements + 1,
            nans=self.nans + (not is_finite and not is_infinite),
            infinities=self.infinities + is_infinite,
            absmax_bits=max(self.absmax_bits, magnitude) if is_finite else self.absmax_bits,
            squares=self.squares + (square_units(layout.value(magnitude)) if is_finite else 0),
        )

    def stats(self, name: str) -> TensorStat:
        """Return the statistics of the tensor, all of whose parts have been joined.

        Args:
            name: The name of the tensor.

        Raises:
            ValueError: Bytes of an element are missing.
        """
        if self.fragments:
            offset, data = self.fragments[0]
            raise ValueError(f"the tensor is incomplete: the element at byte {offset} has only {len(data)} bytes")
        absmax = FLOATS[self.dtype].value(self.absmax_bits)
        subnormal = 0 < absmax < _SMALLEST_NORMAL[self.dtype]
        return TensorStat(
            name=name,
            dtype=self.dtype.value,
            elements=self.elements,
            nans=self.nans,
            infinities=self.infinities,
            absmax=absmax,
            norm=_root(self.squares),
            denormal_only=subnormal and not (self.nans or self.infinities),
        )


def settle(fragments: Iterable[Fragment], nbytes: int) -> tuple[list[bytes], tuple[Fragment, ...]]:
    """Join fragments: return the completed elements, and the remaining fragments by offset.

    Args:
        fragments: Disjoint fragments, each inside one element.
        nbytes: Size of an element in bytes.
    """
    complete: list[bytes] = []
    remaining: list[Fragment] = []
    for offset, data in sorted(fragments):
        if remaining and remaining[-1][0] + len(remaining[-1][1]) == offset and offset % nbytes:
            start, before = remaining.pop()
            joined = before + data
        else:
            start, joined = offset, data
        if len(joined) == nbytes:
            complete.append(joined)
        else:
            remaining.append((start, joined))
    return complete, tuple(remaining)


def square_units(value: float) -> int:
    """Return the square of a number in units of 2**-SQUARE_UNIT_BITS, exactly."""
    mantissa, exponent = math.frexp(value)
    return (int(mantissa * (1 << 53)) ** 2) << (SQUARE_UNIT_BITS + 2 * exponent) >> 106


def units(value: float, doublings: int = 0) -> int:
    """Return `value * 2**doublings` in units of 2**-SQUARE_UNIT_BITS, rounded down."""
    mantissa, exponent = math.frexp(value)
    shift = exponent - 53 + doublings + SQUARE_UNIT_BITS
    scaled = int(mantissa * (1 << 53))
    return scaled << shift if shift >= 0 else scaled >> -shift


def _root(squares: int) -> float:
    """Return the square root of a number of units, correct except for the last bit."""
    # An even shift that leaves 128 bits, so that the root has 64, more than a float can represent.
    shift = (squares.bit_length() - 128) // 2 * 2
    root = math.isqrt(squares >> shift if shift >= 0 else squares << -shift)
    try:
        return math.ldexp(root, shift // 2 - SQUARE_UNIT_BITS // 2)
    except OverflowError:  # many F64 values near the largest
        return math.inf
