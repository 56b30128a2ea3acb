"""A device that computes wrongly, a guard that fails, and matrices of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ckpttool.guard.products import PRODUCTS, Product

if TYPE_CHECKING:
    from torch._ops import OpOverload

INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def flip(tensor: Tensor, index: tuple[int, ...], bit: int) -> None:
    """Flip one bit of one element in place."""
    bits = tensor.view(INTEGERS[tensor.dtype])
    width = bits.itemsize * 8
    mask = 1 << bit if bit < width - 1 else -(1 << bit)
    bits[index] ^= mask


def raising(*_: object, **__: object) -> None:
    """Be a part of the guard that fails."""
    raise RuntimeError("the guard itself")


def nth(owner: object, name: str, number: int) -> object:
    """Return a part of the guard that fails at one of its calls, the first of which is number 0."""
    real, calls = getattr(owner, name), iter(range(1000))

    def call(*values: object, **named: object) -> object:
        if next(calls) == number:
            raising()
        return real(*values, **named)

    return call


class FaultyDevice(TorchDispatchMode):
    """Spoils the result of chosen products; enter it before what shall find that."""

    def __init__(self, op: str, spoil: Callable[[Tensor], None], *, times: int = 1_000_000, after: int = 0) -> None:
        """Take the operation, what is done to its result, how often, and how many are right before."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._op = op
        self._spoil = spoil
        self._times = times
        self._after = after
        self.spoiled = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if str(func) == self._op and not types:
            self._after -= 1
            if self._after < 0 and self.spoiled < self._times:
                self.spoiled += 1
                self._spoil(result)
        return result


def product(a: Tensor, b: Tensor) -> Product:
    """Multiply two matrices, or two batches of them."""
    if a.dim() == 2:
        return PRODUCTS[torch.ops.aten.mm.default]((a, b), {}, a @ b)
    return PRODUCTS[torch.ops.aten.bmm.default]((a, b), {}, torch.bmm(a, b))


def _outlier(rows: int, columns: int) -> Tensor:
    matrix = torch.randn(rows, columns)
    matrix[:, 0] *= 1e4
    return matrix


MATRICES: Mapping[str, Callable[[int, int], Tensor]] = {
    "gaussian": torch.randn,
    "positive": torch.rand,
    "heavy tails": lambda m, n: torch.randn(m, n) ** 5,
    "lognormal": lambda m, n: torch.exp(3 * torch.randn(m, n)).clamp(max=1e3),
    "sparse": lambda m, n: torch.randn(m, n) * (torch.rand(m, n) < 0.05),
    "nearly equal": lambda m, n: 0.3 + 1e-3 * torch.randn(m, n),
    "vanishing": lambda m, n: torch.randn(m, n) * 1e-20,
    "huge": lambda m, n: torch.randn(m, n) * 1e15,
    "rows of all sizes": lambda m, n: torch.randn(m, n) * torch.exp(5 * torch.randn(m, 1)),
    "columns of all sizes": lambda m, n: torch.randn(m, n) * torch.exp(5 * torch.randn(n)),
    "one large column": _outlier,
    "attention": lambda m, n: torch.softmax(3 * torch.randn(m, n), -1),
}
"""Twelve distributions."""


def clean_products(shapes: list[tuple[int, int, int]]) -> Iterator[tuple[str, Product]]:
    """Yield a right product of each distribution, type and shape."""
    for dtype in INTEGERS:
        for name, make in MATRICES.items():
            for m, k, n in shapes:
                a, b = make(m, k).to(dtype), make(k, n).to(dtype)
                if dtype is torch.float16:  # its products overflow soon, and that is right
                    a, b = a.clamp(-8, 8), b.clamp(-8, 8)
                yield f"{name}, {dtype}, {m}×{k}×{n}", product(a, b)
