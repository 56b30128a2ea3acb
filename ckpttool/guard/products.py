"""Check of a matrix product by the sums of its rows. A suspicious row is checked element by element in float64.

Row i of c = a b must have the sum a_i s, where s contains the sums of the rows of b. Norms limit the rounding error of
the difference: n independent roundings of c have the standard deviation u |c_i| / sqrt(3), and a float32 sum of k
products errs by u_a |a_i| |b| / sqrt(6) for mixed signs and u_a sqrt(k) |c| / 3 for equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ckpttool.core.domain.frozen import dataclass

ALARM = 6.0
"""A row is suspicious if its sum deviates by more than this multiple of the expected rounding error."""

_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
_HALF_SUBNORMAL = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25, torch.float32: 2.0**-150}
_SUM_ROUNDOFF = 2.0**-24
"""Roundoff of sums. Products are summed in float32, whatever their type."""
_MOST_IN_A_SUM = torch.finfo(torch.float32).max
_OPERAND_ROUNDOFF = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}
"""Roundoff of float32 products by `torch.set_float32_matmul_precision`, because TF32 and bfloat16 keep fewer bits."""
_FLUSHED = 2.0**-126
"""Numbers below this limit are flushed to zero in operands and products by matrix units such as Intel's AMX."""
_BLOCK = 1 << 18
"""Number of elements to sum at a time: one megabyte in float32."""
_ROWS_AT_ONCE = 256
"""Number of rows to check in float64 at a time."""

Arguments: TypeAlias = "tuple[Any, ...]"
Keywords: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The matrix product c = alpha a b + beta addend, over a batch."""

    a: Tensor
    """Left factor, of shape [batch, m, k]."""
    b: Tensor
    """Right factor, of shape [batch, k, n]."""
    c: Tensor
    """Result, of shape [batch, m, n]."""
    addend: Tensor | None = None
    """A tensor whose shape broadcasts to [batch, m, n]."""
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def flops(self) -> int:
        """Number of multiplications and additions."""
        return 2 * self.c.numel() * self.a.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongElement:
    """The worst element of a wrong product."""

    batch: int
    row: int
    column: int
    ratio: float
    """Its error, in multiples of the rounding bound. Infinite if the element should be finite and is not."""


def _batched(matrix: Tensor) -> Tensor:
    return matrix if matrix.dim() == 3 else matrix[None]  # noqa: PLR2004  [batch, rows, columns]


def _plain(args: Arguments, _kwargs: Keywords, c: Tensor) -> Product:
    a, b = args
    return Product(a=_batched(a), b=_batched(b), c=_batched(c))


def _added(args: Arguments, kwargs: Keywords, c: Tensor) -> Product:
    addend, a, b = args
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    return Product(a=_batched(a), b=_batched(b), c=_batched(c), addend=addend, alpha=alpha, beta=beta)


PRODUCTS: Mapping[object, Callable[[Arguments, Keywords, Tensor], Product]] = MappingProxyType(
    {
        torch.ops.aten.mm.default: _plain,
        torch.ops.aten.addmm.default: _added,
        torch.ops.aten.bmm.default: _plain,
        torch.ops.aten.baddbmm.default: _added,
    }
)
"""Maps an operation to a function that builds a product from its arguments and its result."""


def can_be_checked(product: Product) -> bool:
    """Return whether the bounds apply to a product: it must have one of three types and must not be empty."""
    return product.c.dtype in _ROUNDOFF and product.a.numel() > 0 and product.c.numel() > 0


def suspicious_rows(product: Product, *, roundings_add_up: bool = False) -> Tensor:
    """Return the rows with a wrong sum, as [r, 2] pairs of batch and row. Waits for the device.

    A row with non-finite operands is not suspicious, because its result cannot be finite.

    Args:
        product: A product that can be checked. Its sums and norms are computed in float32.
        roundings_add_up: Treat the roundings within a row as equal instead of independent, as in nearly equal columns.
    """
    s, b = _sums_and_norms(product.b)
    expected, a = _sums_and_norms(product.a, s)
    sums, c = _sums_and_norms(product.c)
    expected *= product.alpha
    addend = None
    if product.addend is not None:
        added, addend = _sums_and_norms(product.addend.expand_as(product.c))
        expected += product.beta * added
        addend *= abs(product.beta)
    error = (sums - expected).abs()
    norms = _Norms(
        a=a,
        b=_row_norms(b).unsqueeze(-1),
        c=c,
        s=_row_norms(s).unsqueeze(-1),
        addend=addend,
        rounded=product.c.float().abs().sum(-1) if roundings_add_up else c,
    )
    calm = _is_calm(error, _tolerance(product, norms))
    if bool(calm.all()):
        return torch.empty(0, 2, dtype=torch.int64)
    rows = torch.nonzero(~calm)
    batch, row = rows.unbind(1)
    exact = _exact_norms(product, batch, row, roundings_add_up=roundings_add_up)
    is_known = exact.a.isfinite() & exact.b.isfinite()
    return rows[~_is_calm(error[batch, row], _tolerance(product, exact)) & is_known].cpu()


def worst_element(product: Product, rows: Tensor) -> WrongElement | None:
    """Check rows in float64, and return the worst element that exceeds its rounding bound, or None.

    Args:
        product: A product that can be checked.
        rows: Batch and row numbers, of shape [r, 2].
    """
    for batch in sorted(set(rows[:, 0].tolist())):
        b = product.b[batch].double()
        for some in rows[rows[:, 0] == batch, 1].split(_ROWS_AT_ONCE):
            wrong = _worst_of(product, b, batch, some.to(product.c.device))
            if wrong is not None:
                return wrong
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norms:
    """L2 norms of the factors of a product, for some or all of its rows."""

    a: Tensor
    b: Tensor
    """Norm of the complete matrix."""
    c: Tensor
    s: Tensor
    """Norm of the sums of the rows of b."""
    addend: Tensor | None
    rounded: Tensor
    """Norm of the rows of c, or the sum of |c| if roundings add up."""


def _exact_norms(product: Product, batch: Tensor, row: Tensor, *, roundings_add_up: bool) -> _Norms:
    """Return the norms of the given rows, without overflow or underflow."""
    a, b, c = product.a[batch, row].double(), product.b.double(), product.c[batch, row].double()
    addend = None
    if product.addend is not None:
        addend = _row_norms(product.beta * product.addend.expand_as(product.c)[batch, row].double())
    norms = _row_norms(c)
    return _Norms(
        a=_row_norms(a),
        b=_row_norms(_row_norms(b))[batch],
        c=norms,
        s=_row_norms(b.sum(-1))[batch],
        addend=addend,
        rounded=c.abs().sum(-1) if roundings_add_up else norms,
    )


def _is_calm(error: Tensor, tolerance: Tensor) -> Tensor:
    return (error <= ALARM * tolerance) & (tolerance < math.inf)


def _tolerance(product: Product, norms: _Norms) -> Tensor:
    root_k, root_n = math.sqrt(product.a.shape[2]), math.sqrt(product.c.shape[2])
    unit, coarse, alpha = _ROUNDOFF[product.c.dtype], _coarse(product), abs(product.alpha)
    of_b = _SUM_ROUNDOFF * (norms.b + root_k * norms.s) + coarse * (norms.b + norms.s)
    flushed = alpha * root_n * root_k * _FLUSHED * (root_k + norms.a + norms.b)
    tolerance = (
        unit * norms.rounded
        + root_n * _HALF_SUBNORMAL[product.c.dtype]
        + _SUM_ROUNDOFF * (root_k + root_n) * norms.c
        + alpha * norms.a * of_b
        + flushed
    )
    return tolerance if norms.addend is None else tolerance + (unit + _SUM_ROUNDOFF * root_n) * norms.addend


def _worst_of(product: Product, b: Tensor, batch: int, rows: Tensor) -> WrongElement | None:
    a = product.a[batch, rows].double()
    c = product.c[batch, rows].double()
    right = product.alpha * (a @ b)
    size = abs(product.alpha) * (a.abs() @ b.abs())
    unit = _ROUNDOFF[product.c.dtype]
    length = product.a.shape[2]
    flushed = _FLUSHED * abs(product.alpha) * (length + a.abs().sum(-1, keepdim=True) + b.abs().sum(0))
    of_sum = 4 * _SUM_ROUNDOFF * math.sqrt(length) + 2 * _coarse(product)
    bound = 2 * _HALF_SUBNORMAL[product.c.dtype] + of_sum * size + flushed
    if product.addend is not None:
        addend = product.beta * product.addend.expand_as(product.c)[batch, rows].double()
        right, size, bound = right + addend, size + addend.abs(), bound + unit * addend.abs()
    bound = bound + unit * right.abs()
    error = (c - right).abs()
    overflows = ~c.isfinite() & (right.abs() + bound > torch.finfo(product.c.dtype).max)
    # A sum may exceed float32 on its way to a small result; and the right answer for non-finite values is unknown.
    unknown = ~right.isfinite() | (~c.isfinite() & (size > _MOST_IN_A_SUM))
    wrong = ~(error <= bound) & ~overflows & ~unknown
    if not bool(wrong.any()):
        return None
    ratios = torch.where(wrong, (error / bound).nan_to_num(nan=math.inf, posinf=math.inf), -1.0)
    row, column = divmod(int(ratios.argmax()), ratios.shape[1])
    return WrongElement(batch=batch, row=int(rows[row]), column=column, ratio=float(ratios[row, column]))


def _coarse(product: Product) -> float:
    """Return the roundoff of a product if it is coarser than that of its types, else 0."""
    kind = product.c.dtype
    if kind is torch.float32:
        return _OPERAND_ROUNDOFF[torch.get_float32_matmul_precision()]
    matmul = torch.backends.cuda.matmul
    is_reduced = (
        matmul.allow_bf16_reduced_precision_reduction
        if kind is torch.bfloat16
        else matmul.allow_fp16_reduced_precision_reduction
    )
    return _ROUNDOFF[kind] if product.c.is_cuda and is_reduced else 0.0


def _sums_and_norms(rows: Tensor, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sums of rows and their norms, each as float32 of shape [batch, rows].

    Args:
        rows: Tensor of shape [batch, rows, columns].
        factors: Weights of the elements in the sums, of shape [batch, columns].
    """
    sums = torch.empty(rows.shape[:2], dtype=torch.float32, device=rows.device)
    norms = torch.empty_like(sums)
    for where in _blocks(rows):
        block = rows[where].float()
        if factors is None:
            sums[where] = block.sum(-1)
        else:
            sums[where] = torch.matmul(block, factors[where[0]].unsqueeze(-1)).squeeze(-1)
        norms[where] = _row_norms(block)
    return sums, norms


def _blocks(rows: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of batches and rows for blocks that fit into a cache, because memory access limits the check."""
    batches, count, columns = rows.shape
    if rows.is_cuda or rows.numel() <= _BLOCK:
        yield slice(None), slice(None)
        return
    at_once = max(1, _BLOCK // (count * columns))
    height = min(count, max(1, _BLOCK // columns))
    for batch in range(0, batches, at_once):
        for row in range(0, count, height):
            yield slice(batch, batch + at_once), slice(row, row + height)


def _row_norms(rows: Tensor) -> Tensor:
    if rows.dim() > 1 and rows.stride(-1) != 1:  # then torch's own function is thirty times slower
        return rows.square().sum(-1).sqrt()
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norms
