"""Rounding of numbers to FP8 as in hardware, and the scales to apply first, with numpy in F32.

The method needs no table and no branch. It adds a constant whose exponent is so large that the last bit of the sum is
one step of the format, and subtracts it again. The processor's rounding, to nearest and ties to even, does the rest,
including subnormals. The constant is 1.5 times a power of two, because with 1.0 the sum of a negative number would have
another exponent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.fp8.model.fp8 import Fp8Format, Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class Limits(NamedTuple):
    """The range of a format."""

    largest: float
    smallest_normal: float
    mantissa_bits: int
    exponent: int
    """Exponent of the format's largest number."""

    @property
    def smallest(self) -> float:
        """The smallest number above zero. Numbers up to half of it become zero."""
        return float(self.smallest_normal / (1 << self.mantissa_bits))


LIMITS = {
    Fp8Format.E4M3: Limits(448.0, 2.0**-6, 3, 8),
    Fp8Format.E5M2: Limits(57344.0, 2.0**-14, 2, 15),
}

_EXPONENT_BITS = 0x7F800000
_F32_MANTISSA_BITS = 23
_HALF = 1 << (_F32_MANTISSA_BITS - 1)


def round_in_place(values: Array, format_: Fp8Format, scratch: Array) -> None:
    """Round F32 numbers within the format's range. NaN stays NaN, and numbers that become zero lose their sign.

    Args:
        values: The numbers, which are overwritten.
        format_: The target format.
        scratch: F32 of the same shape, which is also overwritten.
    """
    np: Any = numpy()
    limits, bits = LIMITS[format_], scratch.view(np.uint32)
    np.bitwise_and(values.view(np.uint32), np.uint32(_EXPONENT_BITS), out=bits)
    np.maximum(bits, np.float32(limits.smallest_normal).view(np.uint32), out=bits)
    np.add(bits, np.uint32(((_F32_MANTISSA_BITS - limits.mantissa_bits) << _F32_MANTISSA_BITS) + _HALF), out=bits)
    np.add(values, scratch, out=values)
    np.subtract(values, scratch, out=values)


def cast(values: Array, format_: Fp8Format, *, scale: Array | float = 1.0) -> Array:
    """Cast F32 numbers to FP8, bit for bit as hardware does. The result is still scaled, and saturates.

    Args:
        values: Numbers of any shape.
        format_: The target format.
        scale: The factor before the cast, in F32.
    """
    np: Any = numpy()
    limits = LIMITS[format_]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.multiply(values, np.asarray(scale, np.float32), dtype=np.float32)
        rounded = np.clip(scaled, -limits.largest, limits.largest)
        round_in_place(rounded, format_, np.empty_like(rounded))
        cast_values: Array = np.copysign(rounded, scaled)
    return cast_values


def scales(amax: Array, format_: Fp8Format, recipe: Recipe) -> Array:
    """Return the scale factors for these largest magnitudes.

    Args:
        amax: Largest magnitudes in F32. The scale is 1 for zero and for non-finite values.
        format_: The format of the later cast.
        recipe: The recipe that computes the scale.

    Source:
        Transformer Engine's `compute_scale_from_amax`: maximum over amax; an infinite one becomes the largest F32;
        powers of two by cutting off the mantissa. E8M0 is rounded up there, in DeepGEMM too, and down by the OCP's own
        rule.
    """
    np: Any = numpy()
    limits = LIMITS[format_]
    amax = np.asarray(amax, np.float32)
    usable = np.isfinite(amax) & (amax > 0)
    amax = np.where(usable, amax, np.float32(1))
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        if recipe is Recipe.MXFP8_FLOOR:
            powers = _power(limits.exponent - (np.frexp(amax)[1] - 1))
        elif recipe is Recipe.MXFP8:
            least = np.maximum(amax * np.float32(1 / limits.largest), np.finfo(np.float32).smallest_subnormal)
            fraction, exponent = np.frexp(least)
            powers = _power(-np.where(fraction > np.float32(0.5), exponent, exponent - 1))
        else:
            powers = np.minimum(np.float32(limits.largest) / amax, np.finfo(np.float32).max)
            if recipe in {Recipe.ROWWISE, Recipe.BLOCKWISE}:
                powers = (powers.view(np.uint32) & np.uint32(_EXPONENT_BITS)).view(np.float32)
    result: Array = np.where(usable, powers, np.float32(1)).astype(np.float32)
    return result


def _power(exponent: Array) -> Array:
    """Return powers of two, limited to an eight-bit exponent."""
    np: Any = numpy()
    powers: Array = np.ldexp(np.float32(1), np.clip(exponent, -127, 127))
    return powers
