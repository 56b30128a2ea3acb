"""Element types, with the names that safetensors uses."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type. The value is its safetensors name; `bits` is the width of one element.

    Five types have no safetensors name, because only MindSpore's `.ckpt` contains them: I4X2, HIF8, C128, STRING,
    OPAQUE.
    """

    BOOL = "BOOL"
    F4 = "F4"
    F6_E2M3 = "F6_E2M3"
    F6_E3M2 = "F6_E3M2"
    I4X2 = "I4X2"
    """Two 4-bit integers in one byte, which count as one element (MindSpore's `qint4x2`)."""
    U8 = "U8"
    I8 = "I8"
    F8_E5M2 = "F8_E5M2"
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    HIF8 = "HIF8"
    I16 = "I16"
    U16 = "U16"
    F16 = "F16"
    BF16 = "BF16"
    I32 = "I32"
    U32 = "U32"
    F32 = "F32"
    I64 = "I64"
    U64 = "U64"
    F64 = "F64"
    C64 = "C64"
    C128 = "C128"
    STRING = "STRING"
    """One UTF-32 text of any length. Its shape is `()`, and only its spans show its size in bytes."""
    OPAQUE = "OPAQUE"
    """Bytes without elements, such as the state of a random generator; the shape is `()`."""

    @property
    def bits(self) -> int:
        """Width of one element in bits; the element is a character for STRING and a byte for OPAQUE."""
        return _BITS[self]


_BITS = {
    DType.BOOL: 8,
    DType.F4: 4,
    DType.F6_E2M3: 6,
    DType.F6_E3M2: 6,
    DType.I4X2: 8,
    DType.U8: 8,
    DType.I8: 8,
    DType.F8_E5M2: 8,
    DType.F8_E4M3: 8,
    DType.F8_E8M0: 8,
    DType.F8_E4M3FNUZ: 8,
    DType.F8_E5M2FNUZ: 8,
    DType.HIF8: 8,
    DType.I16: 16,
    DType.U16: 16,
    DType.F16: 16,
    DType.BF16: 16,
    DType.I32: 32,
    DType.U32: 32,
    DType.F32: 32,
    DType.I64: 64,
    DType.U64: 64,
    DType.F64: 64,
    DType.C64: 64,
    DType.C128: 128,
    DType.STRING: 32,
    DType.OPAQUE: 8,
}
