"""What a shard holds: its header read as for a check, and beside the findings all that it declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckpttool.domain.contents import Opened, is_asked
from ckpttool.domain.finding import Finding, Severity, worst
from ckpttool.domain.shard import FormatName, TensorEntry
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import CheckTask, TensorStat
from ckpttool.formats.base import Checksum, schema_hash, schema_rows
from ckpttool.formats.scalars import read_single
from ckpttool.storage.base import ByteSource
from ckpttool.verify.checks.structure import observe_header
from ckpttool.verify.observation import Observation


def open_shard(
    task: CheckTask, source: ByteSource, *, patterns: Sequence[str] = (), stats: bool = False
) -> Observation:
    """Report a shard as a check of its structure does, and what it holds.

    Args:
        task: The shard.
        source: The open file.
        patterns: Tensors whose numbers are asked for; none: all.
        stats: Whether they are asked for at all.

    Raises:
        OSError: The disk did not answer, or the file was cut meanwhile.
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
    if header is None:
        return replace(observed, opened=opened)
    if header.format is FormatName.TORCH_ZIP:
        opened = _of_torch(observed, opened, source)
    else:
        opened = replace(
            opened,
            entries=header.entries,
            values=read_single(source, header.entries),
            producer=_producer(header.format, dict(header.metadata)),
            metadata=header.metadata,
            checksum=_spelled(header.checksum),
        )
    if stats and worst(report.findings) < Severity.DAMAGE:
        opened, sick = _measured(opened, source, patterns)
        report = replace(report, findings=(*report.findings, *sick))
    schema = schema_hash(schema_rows(opened.entries))
    opened = replace(opened, schema=schema, entries=_shared(schema, opened.entries))
    return replace(observed, report=report, header=None, records=None, opened=opened)


def _measured(opened: Opened, source: ByteSource, patterns: Sequence[str]) -> tuple[Opened, Sequence[Finding]]:
    from ckpttool.verify.checks.numerics import judge_numbers
    from ckpttool.verify.kernels.elements import Measure

    measure = Measure(source)
    stats = tuple(measure.stats(each) if is_asked(each.name, patterns) else None for each in opened.entries)
    told = [
        TensorStat(
            name=entry.name,
            dtype=entry.dtype.value,
            elements=found.elements,
            nans=found.nans,
            infinities=found.infinities,
            absmax=found.absmax or 0.0,
            norm=found.norm,
            denormal_only=False,
        )
        for entry, found in zip(opened.entries, stats, strict=True)
        if found is not None and (found.nans or found.infinities)
    ]
    return replace(opened, stats=stats), judge_numbers(opened.path, told)


_KEPT: dict[str, tuple[TensorEntry, ...]] = {}
_MOST_KEPT = 64


def _shared(schema: str, entries: tuple[TensorEntry, ...]) -> tuple[TensorEntry, ...]:
    """Return the same tensors in the same order, in memory once: those of thousands of ranks would not fit into it.

    Where they lie in the file may be another's; who wants to read them opens the file again.
    """
    kept = _KEPT.get(schema, ())
    if len(kept) == len(entries) and all(ours.name == theirs.name for ours, theirs in zip(kept, entries, strict=True)):
        return kept
    if len(_KEPT) >= _MOST_KEPT:
        _KEPT.clear()
    _KEPT[schema] = entries
    return entries


def _of_torch(observed: Observation, opened: Opened, source: ByteSource) -> Opened:
    from ckpttool.formats.torch.contents import torch_contents

    records = observed.records.entries if observed.records is not None else ()
    found = torch_contents(source, records)
    checked = observed.records is not None and observed.records.verifiable
    version = "" if found.version is None else f", archive version {found.version}"
    return replace(
        opened,
        entries=found.entries,
        values=(*read_single(source, found.entries), *found.values),
        producer=f"torch.save{version}",
        checksum=("crc32-records", f"{len(records)} records") if checked else None,
        unread=found.unread,
    )


def _producer(format_: FormatName, metadata: dict[str, str]) -> str | None:
    """Say what wrote a file, where its bytes tell."""
    if format_ is FormatName.MINDSPORE_CKPT:
        return "MindSpore"
    return {"ms": "MindSpore", "pt": "PyTorch", "np": "NumPy", "tf": "TensorFlow"}.get(metadata.get("format", ""))


def _spelled(checksum: Checksum | None) -> tuple[str, str] | None:
    return None if checksum is None else (checksum.algorithm, f"{checksum.value:08x}")
