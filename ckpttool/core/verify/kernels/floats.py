"""Bit layout of the floating-point types."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ckpttool.core.domain.dtype import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatLayout:
    """A sign bit, followed by the exponent and the mantissa. A *magnitude* is the bit pattern without the sign.

    Magnitudes as integers have the same order as the values, with infinity after the largest finite value and NaN after
    infinity. A maximum over integers therefore finds all three.
    """

    exponent_bits: int
    mantissa_bits: int
    nbytes: int
    """Bytes of one element."""
    magnitude_mask: int
    """All bits except the sign."""
    largest_finite: int
    """Largest finite magnitude."""
    infinity: int | None
    """Magnitude of infinity; None if the type has no infinity."""

    @property
    def smallest_normal(self) -> int:
        """Smallest magnitude that is not subnormal."""
        return 1 << self.mantissa_bits

    @property
    def bias(self) -> int:
        """Bias of the stored exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    def value(self, magnitude: int) -> float:
        """Return the exact value of a finite magnitude."""
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if exponent == 0:
            return math.ldexp(mantissa, 1 - self.bias - self.mantissa_bits)
        return math.ldexp((1 << self.mantissa_bits) + mantissa, exponent - self.bias - self.mantissa_bits)


def _layout(exponent_bits: int, mantissa_bits: int, *, has_infinity: bool = True) -> FloatLayout:
    mask = (1 << (exponent_bits + mantissa_bits)) - 1
    infinity = mask - (1 << mantissa_bits) + 1
    return FloatLayout(
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        nbytes=(1 + exponent_bits + mantissa_bits) // 8,
        magnitude_mask=mask,
        # F8_E4M3 uses the pattern of infinity for numbers, and has one NaN.
        largest_finite=infinity - 1 if has_infinity else mask - 1,
        infinity=infinity if has_infinity else None,
    )


# Only types that IEEE 754 and the OCP FP8 paper define; F8_E8M0 is a scale without a sign, and the FNUZ types have a
# different NaN and no negative zero.
FLOATS: dict[DType, FloatLayout] = {
    DType.F64: _layout(11, 52),
    DType.F32: _layout(8, 23),
    DType.F16: _layout(5, 10),
    DType.BF16: _layout(8, 7),
    DType.F8_E4M3: _layout(4, 3, has_infinity=False),
    DType.F8_E5M2: _layout(5, 2),
}
"""The types whose elements are checked."""
