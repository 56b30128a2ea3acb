"""Amplification by the worst hidden unit of a SwiGLU's gate and up weights.

Source:
    (x·g)(x·u) over all |x| = 1 is at most |g||u|(1 + cos(g, u))/2, the larger eigenvalue of (gu' + ug')/2. A Llama-2 7B
    in FP8 diverged after 200 billion tokens when gate and up rows had aligned (arXiv 2409.12517).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.verify.kernels.elements import pieces
from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.fp8.model.probe import GatedNumbers
from ckpttool.fp8.read.kernel_sample import FLOATING, matrix_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_PAIRS = {"gate_proj": "up_proj", "w1": "w3"}
_FUSED, _BEHIND = "linear_fc1", "linear_fc2"
"""A weight that may contain stacked gate and up weights, and the next weight, whose width shows whether it does."""

_BAND = 1 << 17
"""Number of elements of each weight to check together, which is half a MiB of F32."""


class _Half(NamedTuple):
    """A range of rows of a tensor."""

    entry: TensorEntry
    first: int
    last: int


class Gated(NamedTuple):
    """A gate and its up weights."""

    name: str
    """Name of the gate's weight, or of the combined weight."""
    gate: _Half
    up: _Half


def pairs(entries: Sequence[TensorEntry]) -> Iterator[Gated]:
    """Find gate and up weights among the tensors of a file."""
    by_name = {entry.name: entry for entry in entries if entry.dtype in FLOATING and entry.spans}
    for name, entry in by_name.items():
        rows = matrix_of(name, entry.shape).rows
        parts = re.split(r"([./])", name)
        for gate, up in _PAIRS.items():
            if gate not in parts:
                continue
            partner = by_name.get("".join(up if part == gate else part for part in parts))
            if partner is not None and partner.shape == entry.shape and len(entry.shape) > 1:
                yield Gated(name, _Half(entry, 0, rows), _Half(partner, 0, rows))
        if _FUSED in parts and _is_fused(entry, by_name, parts):
            yield Gated(name, _Half(entry, 0, rows // 2), _Half(entry, rows // 2, rows))


def _is_fused(entry: TensorEntry, by_name: Mapping[str, TensorEntry], parts: Sequence[str]) -> bool:
    fused = by_name.get("".join(_BEHIND if part == _FUSED else part for part in parts))
    return fused is not None and len(entry.shape) == len(fused.shape) == 2 and entry.shape[0] == 2 * fused.shape[1]  # noqa: PLR2004  halves of a matrix


def gains(
    task: CheckTask, source: ByteSource, gated: Gated, passed: Callable[[int], None] | None = None
) -> GatedNumbers | None:
    """Return the amplification of a pair's hidden units, or None if all are zero or not finite.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    np: Any = numpy()
    columns = matrix_of(gated.name, gated.gate.entry.shape).columns
    step = max(1, _BAND // columns)
    lengths_by_piece = []
    for at in range(0, gated.gate.last - gated.gate.first, step):
        gate, up = (_values(source, half, at, step, passed) for half in (gated.gate, gated.up))
        with np.errstate(invalid="ignore", over="ignore"):
            both = ((gate, up), (gate, gate), (up, up))
            lengths_by_piece.append([np.einsum("ij,ij->i", gate, up) for gate, up in both])
    dot, of_gate, of_up = (np.concatenate(column).astype(np.float64) for column in zip(*lengths_by_piece, strict=True))
    lengths = np.sqrt(of_gate * of_up)
    is_finite = np.isfinite(lengths) & (lengths > 0)
    if not is_finite.any():
        return None
    cosine = np.clip(dot[is_finite] / lengths[is_finite], -1.0, 1.0)
    gain = lengths[is_finite] * (1 + cosine) / 2
    median = float(np.median(gain))
    worst = int(np.argmax(gain))
    return GatedNumbers(
        name=gated.name,
        path=task.path,
        rank=task.rank,
        units=gated.gate.last - gated.gate.first,
        gain_over_median=float(gain[worst]) / median if median else math.inf,
        unit=int(np.flatnonzero(is_finite)[worst]),
        alignment=float(np.abs(cosine).max()),
    )


def _values(source: ByteSource, half: _Half, at: int, rows: int, passed: Callable[[int], None] | None) -> Array:
    """Return the values of up to `rows` rows of a gate or up weight, from row `at` on."""
    np: Any = numpy()
    first = half.first + at
    entry = rows_of(half.entry, first, min(first + rows, half.last))
    columns = matrix_of(entry.name, entry.shape).columns
    raw = bytearray()
    for piece in pieces(source, entry):
        raw += piece
    if passed is not None:
        passed(len(raw))
    if entry.dtype is DType.BF16:
        decoded = np.left_shift(np.frombuffer(raw, "<u2"), 16, dtype=np.uint32).view(np.float32)
    else:
        decoded = np.frombuffer(raw, f"<f{entry.dtype.bits // 8}").astype(np.float32)
    values: Array = decoded.reshape(-1, columns)
    return values
