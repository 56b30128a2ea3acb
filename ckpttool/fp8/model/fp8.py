"""FP8 in training: matrix products and their operands, eight-bit formats, and scaling recipes."""

from __future__ import annotations

from enum import Enum


class Gemm(str, Enum):
    """One of the three matrix products of a linear layer in training."""

    FPROP = "fprop"
    """Activation times weight, which gives the output."""
    DGRAD = "dgrad"
    """Gradient times weight, which gives the gradient of the activation."""
    WGRAD = "wgrad"
    """Activation times gradient, which gives the gradient of the weight."""


class Operand(str, Enum):
    """An input of a matrix product."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    GRADIENT = "gradient"


OPERANDS = {
    Gemm.FPROP: (Operand.ACTIVATION, Operand.WEIGHT),
    Gemm.DGRAD: (Operand.GRADIENT, Operand.WEIGHT),
    Gemm.WGRAD: (Operand.ACTIVATION, Operand.GRADIENT),
}
"""Six in all; a stored weight serves as two of them."""


class Fp8Format(str, Enum):
    """An eight-bit floating-point format."""

    E4M3 = "e4m3"
    """Largest 448, smallest normal 2^-6, smallest 2^-9; no infinity, NaN 0x7F."""
    E5M2 = "e5m2"
    """Largest 57344, smallest normal 2^-14, smallest 2^-16; infinity 0x7C."""


class Recipe(str, Enum):
    """The method that computes a scale, and the values that share it."""

    DELAYED = "delayed"
    """One scale per tensor, from the largest magnitude of the last steps."""
    TENSORWISE = "tensorwise"
    """One scale per tensor, from the tensor itself: current scaling."""
    ROWWISE = "rowwise"
    """One scale per row, a power of two."""
    BLOCKWISE = "blockwise"
    """Blocks of 1 x 128 for activations and gradients, and 128 x 128 for weights; scales are powers of two."""
    BLOCKWISE_F32 = "blockwise-f32"
    """The same blocks with 32-bit scales."""
    MXFP8 = "mxfp8"
    """Blocks of 1 x 32, whose scale is an eight-bit power of two, rounded up."""
    MXFP8_FLOOR = "mxfp8-floor"
    """The same, rounded as in the OCP standard."""


class Arithmetic(str, Enum):
    """The arithmetic of a matrix product in an experiment."""

    FP8 = "fp8"
    """The arithmetic of the candidate's recipe."""
    BF16 = "bf16"
    FAKE = "fake"
    """The operands are rounded to FP8 with a current scale, and multiplied in high precision."""
    CURRENT = "current"
    """FP8 with a current scale, although the recipe uses delayed scales."""
