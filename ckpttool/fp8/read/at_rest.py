"""Tensors stored in FP8: the presence, shape and values of their scales, and their use of the format's range.

Source:
    `X.weight_scale_inv` or `X.weight_scale` next to `X.weight`: F32, BF16 or E8M0; one per tensor, per row, or per
    block of 128 x 128 or of `quantization_config.weight_block_size`. Codes are multiplied by either of them, whatever
    the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Finding, damage, note
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import CheckTask, TensorStat
from ckpttool.core.formats.base import quoted
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.stream import BLOCK_BYTES
from ckpttool.core.verify.kernels.elements import NUMBERS, doubles, pieces
from ckpttool.core.verify.kernels.floats import FLOATS
from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.probe import TensorNumbers
from ckpttool.fp8.read.kernel_sample import data_of, matrix_of, parts_of, zero_nonfinite
from ckpttool.inspect.read_contents import opened_shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

AT_REST = frozenset({DType.F8_E4M3, DType.F8_E5M2})

SCALE_WORDS = ("_scale_inv", "_scale")
"""Suffixes that turn a weight's name into the name of its scale."""

USUAL_BLOCK = (128, 128)

_UNUSED = 4
"""Ratio of the format's largest number to a block's from which the scale is stale, because two binades are unused."""

_E8M0_BIAS, _E8M0_NAN = 127, 255
_MATRIX = 2
"""Number of dimensions of a matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """Facts from other files about a shard's tensors. It can be pickled."""

    earlier: Mapping[str, float]
    """The largest magnitude that determines a delayed scale, by tensor name. Other tensors use their own."""
    scales: Mapping[str, str]
    """Paths of the save's other files that contain scales of FP8 tensors, by the name of the scale."""
    block: tuple[int, int] = USUAL_BLOCK
    """Rows and columns that share a scale, if there is a grid of scales."""


NOTHING_BESIDE = OtherFiles(earlier={}, scales={})


class ScalesAtRest:
    """The scales of one shard's tensors, in that shard or in another file of the save."""

    def __init__(self, task: CheckTask, source: ByteSource, entries: Sequence[TensorEntry], extras: OtherFiles) -> None:
        self._task, self._source, self._elsewhere, self.block = task, source, extras.scales, extras.block
        self._entries = {entry.name: entry for entry in entries if entry.name.endswith(SCALE_WORDS)}
        self.any_there = bool(self._elsewhere or self._entries)

    def of(self, name: str) -> tuple[TensorEntry, Array] | None:
        """Return the scale of a tensor and its values in F64, or None if the tensor has no scale.

        Raises:
            OSError: The disk did not answer, or a file was truncated while it was read.
        """
        for scale in (f"{name}{suffix}" for suffix in SCALE_WORDS):
            if scale in self._entries:
                return self._entries[scale], _values(self._source, self._entries[scale])
            if scale in self._elsewhere:
                with ExitStack() as opened:
                    path = self._elsewhere[scale]
                    scale_source = opened.enter_context(open_storage(self._task.root).open(path))
                    entries = opened_shard(replace(self._task, path=path), scale_source)[1].entries
                    matches = [entry for entry in entries if entry.name == scale]
                    if matches:
                        return matches[0], _values(scale_source, matches[0])
        return None


def _values(source: ByteSource, entry: TensorEntry) -> Array:
    np: Any = numpy()
    if entry.dtype is DType.F8_E8M0:
        raw = np.frombuffer(b"".join(map(bytes, pieces(source, entry))), np.uint8).astype(np.int64)
        values: Array = np.where(raw == _E8M0_NAN, np.nan, np.exp2(raw - float(_E8M0_BIAS)))
    elif entry.dtype in NUMBERS:
        values = np.concatenate([np.empty(0), *(doubles(entry.dtype, piece) for piece in pieces(source, entry))])
    else:  # scales have no such type: its values count as NaN
        values = np.full(elements_in(entry.shape), np.nan)
    return values


def at_rest(
    task: CheckTask,
    source: ByteSource,
    entry: TensorEntry,
    scales: ScalesAtRest,
    passed: Callable[[int], None] | None = None,
) -> tuple[TensorNumbers, TensorStat, tuple[Finding, ...]]:
    """Check one tensor stored in FP8.

    Args:
        task: The shard.
        source: The open file.
        entry: The tensor.
        scales: The source of its scale.
        passed: Called after each piece with its size in bytes.

    Returns:
        The tensor's numbers, without any recipe, because it is not cast again; its non-finite values; and the findings
        about its scale.

    Raises:
        OSError: The disk did not answer, or a file was truncated while it was read.
    """
    np: Any = numpy()
    matrix, scale = matrix_of(entry.name, entry.shape), scales.of(entry.name)
    shared = None if scale is None else _shared_by(entry, scale[0].shape, scales.block)
    buffer = memoryview(bytearray(BLOCK_BYTES))
    size = shared or (max(matrix.rows, 1), max(matrix.columns, 1))
    codes = _largest_codes(source, entry, block=size, buffer=buffer, passed=passed)
    if scale is None:
        findings = _without(task.path, entry, any_there=scales.any_there)
    elif shared is None:
        findings = _unfit(task.path, entry, scale[0].shape, scales.block)
    else:
        findings = _invalid(task.path, entry, scale[1]) or _range(task.path, entry, codes)
    layout = FLOATS[entry.dtype]
    values = np.array([layout.value(code) for code in range(layout.largest_finite + 1)])[codes.largest]
    if scale is not None and shared is not None and scale[1].size == values.size:
        values = values * scale[1].reshape(values.shape)
    elements = elements_in(entry.shape)
    numbers = TensorNumbers(
        name=entry.name,
        path=task.path,
        rank=task.rank,
        dtype=entry.dtype.value,
        shape=entry.shape,
        elements=elements,
        sampled=0,
        amax=float(np.nanmax(np.where(np.isfinite(values), values, 0.0))) if elements else None,
        nonfinite=codes.nans + codes.infinities,
        amax_over_rms=None,
        bits=None,
        live=None,
        recipes=(),
    )
    return numbers, stat_of(numbers, codes.nans), findings


def stat_of(numbers: TensorNumbers, nans: int) -> TensorStat:
    """Return the count of non-finite elements in a tensor, in the form that findings use."""
    return TensorStat(
        name=numbers.name,
        dtype=numbers.dtype,
        elements=numbers.elements,
        nans=nans,
        infinities=numbers.nonfinite - nans,
        absmax=numbers.amax or 0.0,
        norm=0.0,
        denormal_only=False,
    )


class _Codes(NamedTuple):
    """The results of one pass over the codes of a tensor."""

    largest: Array
    """Largest code of each block, without its sign, by row and column of blocks. NaN and infinity count as zero."""
    nans: int
    infinities: int


def _largest_codes(
    source: ByteSource,
    entry: TensorEntry,
    *,
    block: tuple[int, int],
    buffer: memoryview,
    passed: Callable[[int], None] | None = None,
) -> _Codes:
    """Read an eight-bit tensor in one pass.

    Args:
        source: The open file.
        entry: The tensor. Its type is in `FLOATS`.
        block: Rows and columns that share a scale. Blocks at the edges may be smaller.
        buffer: Memory to reuse, of at least `BLOCK_BYTES`.
        passed: Called after each piece with its size in bytes.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    np: Any = numpy()
    matrix, layout = matrix_of(entry.name, entry.shape), FLOATS[entry.dtype]
    height, width = block
    largest = np.zeros((-(-matrix.rows // height), -(-matrix.columns // width)), np.uint8)
    nans = infinities = begin = 0
    for data in data_of(source, entry, matrix.columns, buffer):
        codes = np.bitwise_and(np.frombuffer(data, np.uint8), np.uint8(layout.magnitude_mask))
        more_nans, more_infinities = zero_nonfinite(codes, layout)
        nans, infinities = nans + more_nans, infinities + more_infinities
        for row, column, part in parts_of(codes, begin, matrix.columns):
            down, across = _starts(row, len(part), height), _starts(column, part.shape[1], width)
            blocks = part if height == 1 else np.maximum.reduceat(part, down, axis=0)
            blocks = (
                blocks.max(axis=1, keepdims=True) if len(across) == 1 else np.maximum.reduceat(blocks, across, axis=1)
            )
            region = largest[row // height :, column // width :][: blocks.shape[0], : blocks.shape[1]]
            np.maximum(region, blocks, out=region)
        begin += len(codes)
        if passed is not None:
            passed(len(data))
    return _Codes(largest, nans, infinities)


def _starts(begin: int, length: int, size: int) -> list[int]:
    """Return the starts of blocks in a range, counted from the beginning of the range."""
    return [0, *range(size - begin % size, length, size)]


def _shared_by(entry: TensorEntry, shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int] | None:
    """Return the rows and columns that share a scale, or None if a scale of this shape does not fit.

    In a stack of matrices, each matrix has separate scales.
    """
    matrix = matrix_of(entry.name, entry.shape)
    if elements_in(shape) == 1:
        return max(matrix.rows, 1), max(matrix.columns, 1)
    if not matrix.is_matrix or matrix.columns != entry.shape[-1]:
        return None
    *stack, rows, columns = entry.shape
    lead, (high, wide) = tuple(stack), block
    if stack and shape in {lead, (*lead, 1, 1)}:
        return rows, columns
    if shape in {(*lead, rows), (*lead, rows, 1)}:
        return 1, columns
    if shape == (*lead, -(-rows // high), -(-columns // wide)) and not (stack and rows % high):
        return high, wide
    return None


def _without(path: str, entry: TensorEntry, *, any_there: bool) -> tuple[Finding, ...]:
    severity, reason = (damage, "other tensors have one") if any_there else (note, "no other tensor has one either")
    base = entry.name.rpartition(".")[2]
    names = " or ".join(f"{base}{suffix}" for suffix in SCALE_WORDS)
    message = f"{quoted(entry.name)} is stored in FP8 but has no scale ({names}); {reason}"
    return (severity(Fp8Code.FP8_SCALE_MISSING, message, path=path, tensor=entry.name),)


def _unfit(path: str, entry: TensorEntry, shape: tuple[int, ...], block: tuple[int, int]) -> tuple[Finding, ...]:
    *stack, rows, columns = entry.shape if len(entry.shape) >= _MATRIX else (1, 1)
    shapes = [(1,), (*stack, rows), (*stack, -(-rows // block[0]), -(-columns // block[1]))]
    message = (
        f"the scale of {quoted(entry.name)} has the shape {_shape_text(shape)}, not "
        f"{' or '.join(map(_shape_text, shapes))}"
    )
    expected = " or ".join(map(_shape_text, shapes))
    return (
        damage(
            Fp8Code.FP8_SCALE_SHAPE, message, path=path, tensor=entry.name, expected=expected, actual=_shape_text(shape)
        ),
    )


def _invalid(path: str, entry: TensorEntry, values: Array) -> tuple[Finding, ...]:
    np: Any = numpy()
    bad = int(np.count_nonzero(~(np.isfinite(values) & (values > 0))))
    if not bad:
        return ()
    message = f"{bad} of {counted(len(values), 'scale')} of {quoted(entry.name)}: zero, negative or not finite"
    return (damage(Fp8Code.FP8_SCALE_INVALID, message, path=path, tensor=entry.name, expected="0", actual=str(bad)),)


def _range(path: str, entry: TensorEntry, codes: _Codes) -> tuple[Finding, ...]:
    """Return a note if blocks leave the upper part of the format's range unused."""
    np: Any = numpy()
    layout = FLOATS[entry.dtype]
    least = layout.value(layout.largest_finite) / _UNUSED
    first = next(code for code in range(layout.largest_finite + 1) if layout.value(code) >= least)
    nonzero = codes.largest > 0
    low = int(np.count_nonzero(nonzero & (codes.largest < first)))
    if not low:
        return ()
    message = (
        f"in {low} of {counted(int(np.count_nonzero(nonzero)), 'block')} of {quoted(entry.name)} the largest number "
        "is below a quarter of the format's maximum: two binades are wasted, and the scale may be stale"
    )
    return (note(Fp8Code.FP8_RANGE_UNUSED, message, path=path, tensor=entry.name),)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1"
