"""What records of a save say against its files: a manifest's sizes, schemas and scalars, and the save's own lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.expectation import cut_short
from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, damage
from ckpttool.core.domain.scalars import ScalarValues, spelled
from ckpttool.core.domain.verdict import ShardReport

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal


def missing_files(checkpoint: Checkpoint, seals: Mapping[str, ShardSeal], unlisted: Iterable[str]) -> Iterator[Finding]:
    """Find files that were sealed and are not listed any more.

    Args:
        checkpoint: As it was listed.
        seals: What its manifest recorded, by path.
        unlisted: Folders that could not be listed: what is in there is unknown, not missing.
    """
    known = {shard.path for shard in checkpoint.shards}
    known |= {finding.path for finding in checkpoint.findings if finding.path is not None}
    closed = tuple(f"{folder}/" for folder in unlisted)
    for path in sorted(seals.keys() - known):
        if not path.startswith(closed):
            message = f"the manifest recorded this file on {seals[path].first_seen}, and it is not there"
            yield damage(Code.SHARD_MISSING, message, path=path)


def cut_short_files(checkpoint: Checkpoint, reports: Sequence[ShardReport]) -> Iterator[Finding]:
    """Find files that are shorter than the save's own record says, where nothing has told it yet."""
    said = {(finding.code, finding.path) for report in reports for finding in report.findings}
    said |= {(finding.code, finding.path) for finding in checkpoint.findings}
    stamps = {report.path: report.stamp for report in reports if report.stamp is not None}
    for finding in cut_short(checkpoint.shards, stamps):
        if (finding.code, finding.path) not in said:
            yield finding


def under_another_name(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> Iterator[Finding]:
    """Say whose file it is that is not what was sealed of its name, where it is what was sealed of another one."""
    sealed_as: dict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    for report in reports:
        own, told = seals.get(report.path), [each for each in report.findings if each.code is Code.CHECKSUM_MISMATCH]
        apart = [(each.expected, each.actual) for each in told if own is not None and each.expected in own.chunks]
        if own is None or not apart:
            continue
        for path, seal in () if sealed_as else sorted(seals.items()):
            for chunk in seal.chunks:
                sealed_as[chunk].setdefault(seal.chunks, path)
        for chunks, path in sealed_as.get(apart[0][1] or "", {}).items():
            # Of what differs the first places are told alone.
            differing = [(mine, other) for mine, other in zip(own.chunks, chunks, strict=False) if mine != other]
            if seals[path].size == own.size and differing[: len(apart)] == apart:
                message = f"is what was sealed of {path} on {seals[path].first_seen}: a copy under another name"
                yield damage(Code.SCHEMA_DIFFERS, message, path=report.path, remedy=OWN_FILE)
                break


def as_sealed(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> frozenset[str]:
    """Return the paths of the files whose size, schema and training scalars are those that were sealed."""
    return frozenset(
        report.path
        for report in reports
        if (seal := seals.get(report.path)) is not None
        and report.stamp is not None
        and (report.stamp.size, report.schema_hash, report.scalars) == (seal.size, seal.schema_hash, seal.scalars)
    )


def changed_headers(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> Iterator[Finding]:
    """Compare sizes, schemas and training scalars; where content is read, its digests say more."""
    for report in reports:
        seal = seals.get(report.path)
        if seal is None or report.stamp is None or report.level.reads_content:
            continue
        if report.stamp.size != seal.size:
            message = f"has {report.stamp.size} bytes, the manifest recorded {seal.size} on {seal.first_seen}"
            expected, actual = str(seal.size), str(report.stamp.size)
        elif report.schema_hash != seal.schema_hash or report.scalars != seal.scalars:
            message = f"its header is not the one that the manifest recorded on {seal.first_seen}"
            expected, actual = _told(seal.schema_hash, seal.scalars), _told(report.schema_hash, report.scalars)
        else:
            continue
        yield damage(
            Code.CHECKSUM_MISMATCH,
            message,
            path=report.path,
            expected=expected,
            actual=actual,
            remedy="ckpttool verify --level checksum names the place",
        )


def _told(schema_hash: str | None, scalars: ScalarValues) -> str:
    said = ", ".join(f"{name}={value}" for name, value in spelled(scalars).items())
    return f"{schema_hash} Scalars({said})"
