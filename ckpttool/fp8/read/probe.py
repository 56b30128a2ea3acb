"""Statistics of a shard's tensors after a cast to FP8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Finding, Severity, unknown, worst
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FormatName, TensorEntry
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import CheckTask, TensorStat
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.stream import BLOCK_BYTES
from ckpttool.core.verify.checks.numerics import judge_numbers
from ckpttool.core.verify.checks.structure import capped
from ckpttool.core.verify.kernels.fold import numpy
from ckpttool.core.verify.observation import Observation
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.probe import GatedNumbers, Lines, ProbeQuestion, TensorNumbers
from ckpttool.fp8.read.at_rest import (
    AT_REST,
    NOTHING_BESIDE,
    SCALE_WORDS,
    OtherFiles,
    ScalesAtRest,
    at_rest,
    stat_of,
)
from ckpttool.fp8.read.kernel_numbers import WIDE_BITS, CastSums, Scales, Tile
from ckpttool.fp8.read.kernel_sample import FLOATING, SIDE, Sample, every_tile, magnitudes, take
from ckpttool.fp8.read.kernel_swiglu import gains, pairs
from ckpttool.inspect.read_contents import opened_shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Passed = Callable[[int], None]

_LARGEST = 0x7F7FFFFF
"""Bit pattern of the largest F32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardNumbers:
    """The effect of FP8 on a shard's tensors."""

    tensors: tuple[TensorNumbers, ...]
    gated: tuple[GatedNumbers, ...]
    """The amplification by the shard's gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLargest:
    """The largest magnitude of each of a shard's tensors, by name."""

    magnitudes: tuple[tuple[str, float], ...]


def probe_shard(  # noqa: PLR0913  the options of a probe, by keyword
    task: CheckTask,
    source: ByteSource,
    *,
    question: ProbeQuestion,
    is_selected: Callable[[TensorEntry], bool],
    extras: OtherFiles = NOTHING_BESIDE,
    passed: Passed | None = None,
) -> Observation:
    """Return the same report as a structure check of the shard, with the effect of FP8 on its tensors.

    Args:
        task: The shard.
        source: The open file.
        question: The settings for each tensor.
        is_selected: Returns whether to check a tensor.
        extras: Facts from other files about the shard's tensors.
        passed: Called after each piece of the data with its size in bytes.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    observed, opened = opened_shard(task, source)
    report = observed.report
    probed: list[TensorNumbers] = []
    gated: list[GatedNumbers] = []
    findings: list[Finding] = []
    if worst(report.findings) < Severity.DAMAGE:
        prober, sick = _Prober(source, question, extras.earlier, passed), []
        scales = ScalesAtRest(task, source, opened.entries, extras)
        selected = [entry for entry in opened.entries if is_selected(entry) and not entry.name.endswith(SCALE_WORDS)]
        readable = [entry for entry in selected if entry.dtype in FLOATING and (entry.spans or 0 in entry.shape)]
        for entry in readable:
            numbers, stat = prober.numbers(task, entry)
            probed.append(numbers)
            sick += [] if stat.finite else [stat]
        codes = [entry for entry in selected if entry.dtype in AT_REST and (entry.spans or 0 in entry.shape)]
        of_scales: list[Finding] = []
        for entry in codes:
            numbers, stat, finding = at_rest(task, source, entry, scales, passed)
            probed.append(numbers)
            sick += [] if stat.finite else [stat]
            of_scales += finding
        if question.swiglu:
            pair_gains = (gains(task, source, pair, passed) for pair in pairs(selected))
            gated = [numbers for numbers in pair_gains if numbers is not None]
        remaining = (
            sum(entry.dtype not in _WHOLE_NUMBERS for entry in selected) - len(readable) - len(codes) + opened.unread
        )
        packed = report.format is FormatName.OCDBT
        findings = [
            *_capped(of_scales),
            *judge_numbers(task.path, sick),
            *([_not_seen(task.path, remaining)] if remaining or packed else []),
        ]
    report = replace(report, findings=(*report.findings, *findings))
    return replace(
        observed,
        report=report,
        header=None,
        records=None,
        added=ShardNumbers(tensors=tuple(probed), gated=tuple(gated)),
    )


def largest_in_shard(
    task: CheckTask,
    source: ByteSource,
    *,
    is_selected: Callable[[TensorEntry], bool],
    as_stored: bool,
    passed: Passed | None = None,
) -> Observation:
    """Return a report with only the largest magnitude of each tensor of a shard.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    observed, opened = opened_shard(task, source)
    buffer = memoryview(bytearray(BLOCK_BYTES))
    largest: list[tuple[str, float]] = []
    selected = (entry for entry in opened.entries if is_selected(entry) and entry.dtype in FLOATING and entry.spans)
    for entry in selected if worst(observed.report.findings) < Severity.DAMAGE else ():
        sample = take(source, entry, places=[], buffer=buffer, passed=passed)
        largest.append((entry.name, float(magnitudes(sample.row_max, entry.dtype, as_stored=as_stored).max())))
    return replace(observed, header=None, records=None, added=ShardLargest(magnitudes=tuple(largest)))


def _capped(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first findings of each kind, and one finding that counts the rest."""
    for code in sorted({finding.code for finding in findings}):
        yield from capped(finding for finding in findings if finding.code is code)


_WHOLE_NUMBERS = frozenset(
    {DType.BOOL, DType.U8, DType.I8, DType.U16, DType.I16, DType.U32, DType.I32, DType.U64, DType.I64}
    | {DType.STRING, DType.OPAQUE}
)
"""Types that are never cast to FP8."""


def _not_seen(path: str, remaining: int) -> Finding:
    """Return a finding about requested tensors that were not checked."""
    what_is_missing = counted(remaining, "tensor") if remaining else "the contents"
    return unknown(
        Code.UNSUPPORTED_FORMAT,
        f"{what_is_missing} could not be checked: packed, scattered, or of a type that ckpttool does not read",
        path=path,
    )


class _Prober:
    """Measurement of the tensors of one file, with shared memory."""

    def __init__(
        self, source: ByteSource, question: ProbeQuestion, earlier: Mapping[str, float], passed: Passed | None
    ) -> None:
        np: Any = numpy()
        self._source, self._question, self._earlier, self._passed = source, question, earlier, passed
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._work = (*(np.empty((SIDE, SIDE), np.float32) for _ in range(3)), np.empty((SIDE, SIDE), np.bool_))

    def numbers(self, task: CheckTask, entry: TensorEntry) -> tuple[TensorNumbers, TensorStat]:
        """Return the statistics of one tensor, and its non-finite elements.

        Raises:
            OSError: The disk did not answer, or the file was truncated while it was read.
        """
        np: Any = numpy()
        question, sample = self._question, take(self._source, entry, buffer=self._buffer, passed=self._passed)
        matrix, elements = sample.matrix, elements_in(entry.shape)
        rows, columns = (self._values(maxima, entry) for maxima in (sample.row_max, sample.column_max))
        amax = float(rows.max()) if elements else 0.0
        earlier = self._earlier.get(entry.name, amax)
        power = np.ldexp(np.float32(1), min(-math.frexp(amax)[1], 127)) if amax else np.float32(1)
        sums = []
        for recipe in question.shown:
            largest = earlier if recipe is Recipe.DELAYED else amax
            for format_ in question.formats:
                scale = Scales(recipe, format_, largest * power, rows * power)
                sums.append((CastSums(recipe, format_, matrix), scale, largest))
        wide = question.exact
        if not wide and len(sample.tiles):
            wide = amax > 2.0**WIDE_BITS * _least(self._values(sample.tiles, entry))
        sampled, squares, least = 0, 0.0, math.inf
        for place, patterns in self._tiles(entry, sample):
            tile = Tile(self._values(patterns, entry) * power, place, matrix, wide=wide)
            sampled += tile.elements
            squares += tile.total / float(power) ** 2
            if tile.nonzero:
                least = min(least, _least(tile.values) / float(power))
                for cast_sums, scale, _ in sums:
                    cast_sums.add(tile, scale.of(tile), self._work)
        rms = math.sqrt(squares / sampled) if sampled else 0.0
        is_exact = question.exact or len(sample.places) == math.prod(matrix.tiles)
        lines = (rows, columns) if matrix.is_matrix else None
        live = Lines(rows=int(np.count_nonzero(rows)), columns=int(np.count_nonzero(columns)))
        numbers = TensorNumbers(
            name=entry.name,
            path=task.path,
            rank=task.rank,
            dtype=entry.dtype.value,
            shape=entry.shape,
            elements=elements,
            sampled=min(sampled, elements),
            amax=amax if elements else None,
            nonfinite=sample.nans + sample.infinities,
            amax_over_rms=amax / rms if rms else None,
            bits=math.log2(amax / least) if amax and math.isfinite(least) else None,
            live=live if matrix.is_matrix else None,
            recipes=tuple(
                cast_sums.numbers(amax=largest, lines=lines, is_exact=is_exact) for cast_sums, _, largest in sums
            ),
        )
        return numbers, stat_of(numbers, sample.nans)

    def _values(self, patterns: Array, entry: TensorEntry) -> Array:
        return magnitudes(patterns, entry.dtype, as_stored=self._question.as_stored)

    def _tiles(self, entry: TensorEntry, sample: Sample) -> Iterator[tuple[tuple[int, int], Array]]:
        if self._question.exact and len(sample.places) < math.prod(sample.matrix.tiles):
            return every_tile(self._source, entry, buffer=self._buffer, passed=self._passed)
        return zip(sample.places, sample.tiles, strict=True)


def _least(values: Array) -> float:
    """Return the smallest positive number, or infinity if all are zero."""
    np: Any = numpy()
    least = int((values.view(np.uint32) - np.uint32(1)).min()) + 1  # zero wraps, and is the largest
    return float(np.uint32(least).view(np.float32)) if least <= _LARGEST else math.inf
