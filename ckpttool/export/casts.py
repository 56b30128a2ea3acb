"""Casts between floating-point types, with rounding to nearest, ties to even, as torch casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.dtype import DType
from ckpttool.core.verify.kernels.fold import numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CAST_ELEMENTS = 1 << 20
"""Number of elements that are cast at once, because a cast needs several copies."""
_NUMPY = {DType.F64: "<f8", DType.F32: "<f4", DType.F16: "<f2"}


def cast(words: NDArray[Any], stored: DType, wanted: DType) -> NDArray[Any]:
    """Cast elements between floating-point types, with rounding to nearest, ties to even, as torch does."""
    np: Any = numpy()
    result: NDArray[Any] = np.empty(len(words), f"<u{wanted.bits // 8}")
    for at in range(0, len(words), _CAST_ELEMENTS):
        part = words[at : at + _CAST_ELEMENTS]
        result[at : at + len(part)] = _from_float(_to_float(part, stored), wanted)
    return result


def _to_float(words: NDArray[Any], stored: DType) -> NDArray[Any]:
    np: Any = numpy()
    floats: NDArray[Any]
    if stored is DType.BF16:
        floats = (words.astype(np.uint32) << np.uint32(16)).view("<f4")
    else:
        floats = words.view(_NUMPY[stored])
    return floats


def _from_float(values: NDArray[Any], wanted: DType) -> NDArray[Any]:
    np: Any = numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        if wanted is not DType.BF16:
            words: NDArray[Any] = values.astype(_NUMPY[wanted]).view(f"<u{wanted.bits // 8}")
            return words
        bits = values.astype("<f4").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    words = np.where(is_nan, np.uint32(0x7FC0), rounded).astype("<u2")
    return words  # noqa: RET504  numpy is not typed here
