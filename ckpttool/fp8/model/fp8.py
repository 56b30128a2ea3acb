"""FP8 in training: matrix products and their operands, eight-bit formats, and scaling recipes."""

from __future__ import annotations

from enum import Enum


class Gemm(str, Enum):
    """One of the three matrix products of a linear layer in training."""

    FPROP = "fprop"
    """Product of activation and weight, which gives the output."""
    DGRAD = "dgrad"
    """Product of gradient and weight, which gives the gradient of the activation."""
    WGRAD = "wgrad"
    """Product of activation and gradient, which gives the gradient of the weight."""


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
"""The two operands of each product, six in all. A stored weight is the operand of two products."""


class Fp8Format(str, Enum):
    """An eight-bit floating-point format."""

    E4M3 = "e4m3"
    """Largest number 448, smallest normal 2^-6, smallest 2^-9. No infinity. NaN is 0x7F."""
    E5M2 = "e5m2"
    """Largest number 57344, smallest normal 2^-14, smallest 2^-16. Infinity is 0x7C."""


class Recipe(str, Enum):
    """The method that computes a scale, and the values that share it."""

    DELAYED = "delayed"
    """One scale per tensor, from the largest magnitude of the last steps."""
    TENSORWISE = "tensorwise"
    """One scale per tensor, from the tensor itself, known as current scaling."""
    ROWWISE = "rowwise"
    """One scale per row, a power of two."""
    BLOCKWISE = "blockwise"
    """Blocks of 1 x 128 for activations and gradients, and 128 x 128 for weights. Scales are powers of two."""
    BLOCKWISE_F32 = "blockwise-f32"
    """The same blocks with 32-bit scales."""
    MXFP8 = "mxfp8"
    """Blocks of 1 x 32, with an eight-bit power of two, rounded up, as the scale."""
    MXFP8_FLOOR = "mxfp8-floor"
    """The same blocks, with scales rounded as in the OCP standard."""


class Arithmetic(str, Enum):
    """The arithmetic of a matrix product in an experiment."""

    FP8 = "fp8"
    """The arithmetic of the candidate's recipe."""
    BF16 = "bf16"
    FAKE = "fake"
    """The operands are rounded to FP8 with a current scale, and multiplied in high precision."""
    CURRENT = "current"
    """FP8 with a current scale, although the recipe uses delayed scales."""
