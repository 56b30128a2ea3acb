"""The contents of a shard, taken from its header, with findings and declarations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ckpttool.core.domain.contents import Opened, elements_in, is_selected
from ckpttool.core.domain.finding import Code, Finding, Severity, worst
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FormatName, TensorEntry
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import CheckTask, TensorStat
from ckpttool.core.formats.base import Checksum, schema_hash, schema_rows
from ckpttool.core.formats.scalars import read_single
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.verify.check import check
from ckpttool.core.verify.checks.structure import contents_of_torch, observe_header
from ckpttool.core.verify.observation import Observation
from ckpttool.inspect.model import Distance


def open_shard(
    task: CheckTask,
    source: ByteSource,
    *,
    patterns: Sequence[str] = (),
    stats: bool = False,
    passed: Callable[[int], None] | None = None,
) -> Observation:
    """Return the same report as a structure check of the shard, with its contents.

    Args:
        task: The shard.
        source: The open file.
        patterns: Tensors whose statistics are requested. Empty for all.
        stats: Whether statistics are requested.
        passed: Called after each piece of the data with its size in bytes.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    observed, opened = opened_shard(task, source)
    report = observed.report
    if stats and worst(report.findings) < Severity.DAMAGE:
        opened, sick = _measured(opened, source, patterns, passed)
        report = replace(report, findings=(*report.findings, *sick))
    schema = schema_hash(schema_rows(opened.entries))
    opened = replace(opened, schema=schema, entries=_shared(schema, opened.entries))
    return replace(observed, report=report, header=None, records=None, added=opened)


def opened_shard(task: CheckTask, source: ByteSource) -> tuple[Observation, Opened]:
    """Return the result of a shard's structure check, and the shard's contents.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    observed = observe_header(task, source)
    report, header = observed.report, observed.header
    opened = Opened(
        path=task.path,
        rank=task.rank,
        role=task.role,
        format=report.format,
        nbytes=ByteCount(source.stamp.size),
        schema="",
    )
    if header is None or any(finding.code is Code.OVER_LIMIT for finding in report.findings):
        return observed, opened  # the contents of a rejected file are dropped
    if header.format in {FormatName.TORCH_ZIP, FormatName.TORCH_ZIPS}:
        return observed, _of_torch(observed, opened, source)
    opened = replace(
        opened,
        entries=header.entries,
        values=read_single(source, header.entries),
        producer=_producer(header.format, dict(header.metadata)),
        metadata=header.metadata,
        checksum=_checksum_pair(header.checksum),
    )
    return observed, opened


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDistances:
    """The distances of a shard's tensors to those of other files."""

    distances: tuple[Distance, ...]


class Counterparts(NamedTuple):
    """The place of each tensor of one side's files on the other side. It can be pickled."""

    tasks: Mapping[str, CheckTask]
    """The other side's files, by path."""
    by_file: Mapping[str, str]
    """Path of each file's counterpart by the file's path, if the counterpart is a single file."""
    by_tensor: Mapping[tuple[Rank | None, str], str]
    """Path of the file that contains a tensor, by rank and name, if the counterpart is several files."""


def compare_shard(  # noqa: PLR0913  what may be asked, by keyword
    task: CheckTask,
    source: ByteSource,
    *,
    counterparts: Counterparts,
    patterns: Sequence[str] = (),
    numerics: bool = False,
    passed: Callable[[int], None] | None = None,
) -> Observation:
    """Compare the values of a shard's tensors with those on the other side.

    Args:
        task: The shard.
        source: The open file.
        counterparts: The places of the same tensors on the other side.
        patterns: The requested tensors. Empty for all.
        numerics: Whether to compare values, or only bits.
        passed: Called after each piece with its number of bytes on both sides.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    observed, opened = opened_shard(task, source)
    entries_by_path: dict[str, list[TensorEntry]] = defaultdict(list)
    if worst(observed.report.findings) < Severity.DAMAGE:
        for entry in opened.entries:
            path = counterparts.by_file.get(task.path) or counterparts.by_tensor.get((task.rank, entry.name))
            if path is not None and elements_in(entry.shape) and is_selected(entry.name, patterns):
                entries_by_path[path].append(entry)
    distances: list[Distance] = []
    findings: list[Finding] = []
    for path, entries in entries_by_path.items():
        compare = partial(_compare_open, ours=source, entries=entries, numerics=numerics)
        peer_observation = check(counterparts.tasks[path], compare=compare, passed=passed)
        compared = peer_observation.result(ShardDistances)
        if compared is not None:
            distances += compared.distances
        findings += (finding for finding in peer_observation.report.findings if finding.severity is Severity.UNKNOWN)
    report = replace(observed.report, findings=(*observed.report.findings, *findings))
    return replace(observed, report=report, header=None, records=None, added=ShardDistances(distances=tuple(distances)))


def _compare_open(  # noqa: PLR0913  as above
    task: CheckTask,
    source: ByteSource,
    *,
    ours: ByteSource,
    entries: Sequence[TensorEntry],
    numerics: bool,
    passed: Callable[[int], None] | None = None,
) -> Observation:
    """Compare tensors of an open file with those of this one."""
    from ckpttool.inspect.kernel_distance import Comparison

    observed, opened = opened_shard(task, source)
    comparison = Comparison(ours, source, numerics=numerics, passed=passed)
    theirs = {entry.name: entry for entry in opened.entries}
    distances: list[Distance] = []
    if worst(observed.report.findings) < Severity.DAMAGE:
        both = ((entry, theirs[entry.name]) for entry in entries if entry.name in theirs)
        results = (comparison.distance(entry, counterpart) for entry, counterpart in both)
        distances += (distance for distance in results if distance is not None)
    return replace(observed, header=None, records=None, added=ShardDistances(distances=tuple(distances)))


def _measured(
    opened: Opened, source: ByteSource, patterns: Sequence[str], passed: Callable[[int], None] | None
) -> tuple[Opened, Sequence[Finding]]:
    from ckpttool.core.verify.checks.numerics import judge_numbers
    from ckpttool.core.verify.kernels.elements import Measure

    measure = Measure(source, passed)
    stats = tuple(measure.stats(entry) if is_selected(entry.name, patterns) else None for entry in opened.entries)
    rows = [
        TensorStat(
            name=entry.name,
            dtype=entry.dtype.value,
            elements=measured.elements,
            nans=measured.nans,
            infinities=measured.infinities,
            absmax=measured.absmax or 0.0,
            norm=measured.norm,
            denormal_only=False,
        )
        for entry, measured in zip(opened.entries, stats, strict=True)
        if measured is not None and (measured.nans or measured.infinities)
    ]
    return replace(opened, stats=stats), judge_numbers(opened.path, rows)


_KEPT: dict[str, tuple[TensorEntry, ...]] = {}
_MOST_KEPT = 64


def _shared(schema: str, entries: tuple[TensorEntry, ...]) -> tuple[TensorEntry, ...]:
    """Return the tensors. Ranks with equal tensors share one copy, so that thousands of ranks fit into memory.

    The offsets may therefore be those in another rank's file. To read the tensors, reopen the rank's own file.
    """
    shared = _KEPT.get(schema, ())
    if len(shared) == len(entries) and all(
        ours.name == theirs.name for ours, theirs in zip(shared, entries, strict=True)
    ):
        return shared
    if len(_KEPT) >= _MOST_KEPT:
        _KEPT.clear()
    _KEPT[schema] = entries
    return entries


def _of_torch(observed: Observation, opened: Opened, source: ByteSource) -> Opened:
    from ckpttool.core.formats.torch.contents import TorchContents

    directory, torch_content = contents_of_torch(observed, source)
    records = directory.entries if directory is not None else ()
    checked = directory is not None and directory.verifiable
    version = "" if torch_content.version is None else f", archive version {torch_content.version}"
    return replace(
        opened,
        entries=torch_content.entries,
        values=(*read_single(source, torch_content.entries), *torch_content.values),
        # For an unreadable file only the name suggests torch.
        producer=None if torch_content == TorchContents() else f"torch.save{version}",
        checksum=("crc32-records", f"{len(records)} records") if checked else None,
        unread=torch_content.unread,
    )


def _producer(format_: FormatName, metadata: dict[str, str]) -> str | None:
    """Return the program that wrote a file, if its bytes show it."""
    if format_ is FormatName.MINDSPORE_CKPT:
        return "MindSpore"
    return {"ms": "MindSpore", "pt": "PyTorch", "np": "NumPy", "tf": "TensorFlow"}.get(metadata.get("format", ""))


def _checksum_pair(checksum: Checksum | None) -> tuple[str, str] | None:
    return None if checksum is None else (checksum.algorithm, f"{checksum.value:08x}")
