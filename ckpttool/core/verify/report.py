"""Reports of shards from their observations, and the verdict on a checkpoint from its reports, in any order.

This module also compares the records of a save with its files: a manifest's sizes, schemas and scalars, and the lengths
that the save records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.expectation import of_other_length
from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, Severity, damage, note, suspect, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import ScalarRules, ScalarValues, encode_scalars
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, moment_if_any
from ckpttool.core.domain.verdict import CheckTask, Level, ShardDigest, ShardReport, Verdict
from ckpttool.core.verify.check import changed, check, failed
from ckpttool.core.verify.observation import Observation

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.storage.base import Storage


def check_and_judge(
    task: CheckTask, *, storage: Storage | None = None, passed: Callable[[int], None] | None = None
) -> Observation:
    """Check one shard, and judge it if it was read completely: a report takes a hundredth of the memory.

    Thousands of tensors are read faster than one thread could judge them, so observations would accumulate.
    """
    observed = check(task, storage=storage, passed=passed)
    if task.part is not None or observed.content is None:
        return observed
    return Observation(task=task, report=judge([observed]))


def judge(observations: Sequence[Observation]) -> ShardReport:
    """Judge one shard by all its observations.

    Args:
        observations: All observations of one shard: one, or one per part.
    """
    ordered = sorted(
        observations, key=lambda observed: observed.task.part or (0, 0)
    )  # of several equal reasons, always the same one
    refused = [observed for observed in ordered if observed.content is None]
    if refused:  # a header alone; or, if content was requested, why it could not be read
        return max(refused, key=lambda observed: worst(observed.report.findings)).report
    end = max(observed.content.end for observed in ordered if observed.content is not None)
    size = ordered[0].report.stamp.size if ordered[0].report.stamp else 0
    if len({observed.report.stamp for observed in ordered}) > 1 or end != size:
        message = "changed between the reads of its parts: another process is writing it"
        return changed(ordered[0].task, message).report
    try:
        return _judged(ordered)
    except ValueError as error:  # parts of one unchanged file that contradict each other: no disk should do that
        message = f"two reads of it do not match ({error}): unknown, not damaged"
        return failed(ordered[0].task, message).report


def _judged(observations: Sequence[Observation]) -> ShardReport:
    """Judge a shard whose every byte was read.

    Raises:
        ValueError: The observations are from different files.
    """
    from ckpttool.core.verify.checks.checksum import judge_checksums, sealed_tensors
    from ckpttool.core.verify.checks.numerics import judge_numbers, stats_of
    from ckpttool.core.verify.kernels.passes import join_passes

    observed, content = (
        observations[0],
        join_passes([observed.content for observed in observations if observed.content is not None]),
    )
    matched, findings = judge_checksums(observed, content)
    stats = stats_of(content) if observed.task.level is Level.NUMERICS else ()
    digest = None
    if content.xxh128 is not None:
        chunks = tuple(chunk.xxh128 for chunk in content.chunks if chunk.xxh128 is not None)
        digest = ShardDigest(xxh3_128=content.xxh128, chunks=chunks)
    tensors = sealed_tensors(observed) if matched else None
    if content.tensors is not None:
        tensors = content.tensors.digests()
    findings = (*observed.report.findings, *findings, *judge_numbers(observed.task.path, stats))
    return replace(
        observed.report,
        checksum_matched=matched,
        findings=findings,
        digest=digest,
        stats=stats,
        tensor_digests=tensors,
        bytes_read=ByteCount(sum(part.report.bytes_read for part in observations)),
    )


def collect(
    checkpoint: Checkpoint, reports: Iterable[ShardReport], level: Level, *, extras: Iterable[ShardReport] = ()
) -> Verdict:
    """Combine the reports of a checkpoint, and compare the reports with one another and with the name.

    Args:
        checkpoint: The checkpoint as listed, with all its shards.
        reports: The reports on all its shards, or on some of them, in any order.
        level: The level of these checks.
        extras: The reports on the other shards, with only headers and sizes checked.
    """
    in_part, extra_reports = in_order(reports), in_order(extras)
    ordered = in_order((*in_part, *extra_reports))
    # Dangling links and empty files are already reported by the listing.
    listed = {(finding.code, finding.path) for finding in checkpoint.findings}
    findings = [
        finding for report in ordered for finding in report.findings if (finding.code, finding.path) not in listed
    ]
    # Shards that must contain the training scalars, and could be parsed far enough.
    required = dict(checkpoint.rules.required)
    bearers = [report for report in ordered if report.role in required and report.schema_hash is not None]
    findings += _scalars_missing(checkpoint.rules, bearers)
    findings += _scalars_differ(checkpoint.rules, ordered)
    findings += _name_differs(checkpoint, bearers)
    return Verdict(
        key=checkpoint.key,
        name=checkpoint.name,
        step=checkpoint.step,
        level=level,
        reports=in_part,
        findings=(*checkpoint.findings, *findings),
        unseen=len({shard.path for shard in checkpoint.shards} - {report.path for report in in_part}),
        beside=extra_reports,
    )


def in_order(reports: Iterable[ShardReport]) -> tuple[ShardReport, ...]:
    """Sort reports by rank and path."""
    return tuple(sorted(reports, key=lambda report: (-1 if report.rank is None else report.rank, report.path)))


def _scalars_missing(rules: ScalarRules, reports: Sequence[ShardReport]) -> list[Finding]:
    """Find files that lack scalars that others have; a `.ckpt` truncated between entries is otherwise valid."""
    anywhere = {name for report in reports for name, _ in report.scalars}
    required = dict(rules.required)
    findings = []
    for report in reports:
        needed = anywhere.union(required[report.role]) - dict(report.scalars).keys()
        lacking = [scalar.name for scalar in rules.requested if scalar.name in needed]
        if lacking:
            cut = "it was truncated at the end of a tensor, or " if report.format is FormatName.MINDSPORE_CKPT else ""
            findings.append(
                damage(
                    Code.SCALARS_MISSING,
                    f"no {', '.join(lacking)} inside: {cut}it is not a training state",
                    path=report.path,
                    remedy="; ".join(filter(None, ("resume from another checkpoint", rules.without))),
                )
            )
    return findings


def _scalars_differ(rules: ScalarRules, reports: Sequence[ShardReport]) -> list[Finding]:
    """Find files that were saved at a different step from most, such as an older file under a newer name."""
    findings = []
    pairs = [(report, dict(report.scalars)) for report in reports]
    for agreed in rules.agreed:
        name = agreed.name
        values = Counter(scalars[name] for _, scalars in pairs if name in scalars)
        if len(values) < 2:  # noqa: PLR2004  two differ
            continue
        # At a tie, either is fine: the checkpoint is not intact in both cases.
        common = max(values.items(), key=lambda item: (item[1], item[0]))[0]
        findings += [
            Finding(
                code=agreed.code,
                severity=agreed.severity,
                message=f"{name} is {value} here, but {common} in {values[common]} of {values.total()} files",
                path=report.path,
                expected=str(common),
                actual=str(value),
                remedy="resume from another checkpoint; this may be an older file under a newer name",
            )
            for report, scalars in pairs
            if (value := scalars.get(name)) not in {None, common}
        ]
    return findings


def _name_differs(checkpoint: Checkpoint, reports: Sequence[ShardReport]) -> list[Finding]:
    """Compare the checkpoint's name with the content of its files."""
    findings = []
    for report in reports:
        if report.role is not ShardRole.FULL:
            continue
        scalars = dict(report.scalars)
        for claim in checkpoint.claims:
            actual = scalars.get(claim.scalar)
            if actual is None:
                continue
            if actual < claim.value if claim.at_least else actual != claim.value:
                findings.append(
                    suspect(
                        Code.NAME_DISAGREES,
                        claim.message % actual,
                        path=report.path,
                        expected=str(claim.value),
                        actual=str(actual),
                        remedy="resume from another checkpoint; this may be an older file under a newer name",
                    )
                )
    return findings


def says_itself(report: ShardReport) -> bool:
    """Return whether this check compared a shard's content or found damage, so that earlier results do not matter."""
    return (
        report.checksum_matched
        or report.copies > 1
        or any(finding.code is Code.CHECKSUM_MISMATCH for finding in report.findings)
        or (report.level.reads_content and worst(report.findings) >= Severity.DAMAGE)
    )


def missing_files(checkpoint: Checkpoint, seals: Mapping[str, ShardSeal], unlisted: Iterable[str]) -> Iterator[Finding]:
    """Find files that were sealed but are no longer listed.

    Args:
        checkpoint: The checkpoint as listed.
        seals: The records of the checkpoint's manifest, by path.
        unlisted: Folders that could not be listed: their contents are unknown, not missing.
    """
    known_paths = {shard.path for shard in checkpoint.shards}
    known_paths |= {finding.path for finding in checkpoint.findings if finding.path is not None}
    closed = tuple(f"{folder}/" for folder in unlisted)
    for path in sorted(seals.keys() - known_paths):
        if not path.startswith(closed):
            message = f"is missing, but the manifest recorded it on {seals[path].first_seen}"
            yield damage(Code.SHARD_MISSING, message, path=path)


def files_of_other_length(checkpoint: Checkpoint, reports: Sequence[ShardReport]) -> Iterator[Finding]:
    """Find files whose length contradicts the save's own record, unless already reported."""
    reported = {(finding.code, finding.path) for report in reports for finding in report.findings}
    reported |= {(finding.code, finding.path) for finding in checkpoint.findings}
    stamps = {report.path: report.stamp for report in reports if report.stamp is not None}
    for finding in of_other_length(checkpoint.shards, stamps):
        if (finding.code, finding.path) not in reported:
            yield finding


def under_another_name(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> Iterator[Finding]:
    """Report files that differ from the seal under their name, but match the seal under a different name."""
    sealed_as: dict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    for report in reports:
        own_seal, mismatches = (
            seals.get(report.path),
            [finding for finding in report.findings if finding.code is Code.CHECKSUM_MISMATCH],
        )
        digests = [
            (finding.expected, finding.actual)
            for finding in mismatches
            if own_seal is not None and finding.expected in own_seal.chunks
        ]
        if own_seal is None or not digests:
            continue
        for path, seal in () if sealed_as else sorted(seals.items()):
            for chunk in seal.chunks:
                sealed_as[chunk].setdefault(seal.chunks, path)
        for chunks, path in sealed_as.get(digests[0][1] or "", {}).items():
            # Only the first differences are reported.
            differing = [
                (mine, actual_chunk)
                for mine, actual_chunk in zip(own_seal.chunks, chunks, strict=False)
                if mine != actual_chunk
            ]
            if seals[path].size == own_seal.size and differing[: len(digests)] == digests:
                message = (
                    f"has the content that was sealed as {path} on {seals[path].first_seen}: a copy under another name"
                )
                yield damage(Code.SCHEMA_DIFFERS, message, path=report.path, remedy=OWN_FILE)
                break


def as_sealed(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> frozenset[str]:
    """Return the paths of the files whose size, schema and training scalars match their seal."""
    return frozenset(
        report.path
        for report in reports
        if (seal := seals.get(report.path)) is not None
        and not is_as_healed_alone(seal)
        and report.stamp is not None
        and (report.stamp.size, report.schema_hash, report.scalars) == (seal.size, seal.schema_hash, seal.scalars)
    )


def is_as_healed_alone(seal: ShardSeal) -> bool:
    """Return whether a seal only describes a healed file whose donor had no checksum, so that it proves no content."""
    if seal.healed is None:
        return False
    from ckpttool.core.domain.replicas import Trust  # few seals describe a healed file

    return seal.healed.trust is not Trust.CHECKSUM


def unproven_copies(
    reports: Sequence[ShardReport], healed: Collection[str], seals: Mapping[str, ShardSeal]
) -> frozenset[str]:
    """Return the paths of healed files whose donor was sealed with the same tensors only by a heal.

    Args:
        reports: The reports of one save.
        healed: Paths of the save's files that only the seal of a heal proves.
        seals: The records of the save's manifest.
    """
    if not healed:
        return frozenset()
    proven = {
        (report.rank, report.role): seals[report.path].tensors
        for report in reports
        if report.path in seals and report.checksum_matched and report.path not in healed
    }
    unproven = []
    for report in reports:
        origin = seals[report.path].healed if report.path in healed else None
        if origin is not None:
            tensors = seals[report.path].tensors
            if tensors is None or proven.get((origin.rank, report.role)) != tensors:
                unproven.append(report.path)
    return frozenset(unproven)


def changed_headers(reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> Iterator[Finding]:
    """Compare sizes, schemas and training scalars; if the content is read, its digests are more precise."""
    for report in reports:
        seal = seals.get(report.path)
        if seal is None or report.stamp is None or report.level.reads_content:
            continue
        if report.stamp.size != seal.size:
            message = f"has {report.stamp.size} bytes, but the manifest recorded {seal.size} on {seal.first_seen}"
            expected, actual = str(seal.size), str(report.stamp.size)
        elif report.schema_hash != seal.schema_hash or report.scalars != seal.scalars:
            message = f"its header differs from the manifest of {seal.first_seen}"
            expected, actual = (
                _header_text(seal.schema_hash, seal.scalars),
                _header_text(report.schema_hash, report.scalars),
            )
        else:
            continue
        yield damage(
            Code.CHECKSUM_MISMATCH,
            message,
            path=report.path,
            expected=expected,
            actual=actual,
            remedy="ckpttool verify --level checksum shows which bytes differ",
        )


CLOCKS_DIFFER = 10
"""Seconds by which a file server's clock may be ahead of the clock of the machine that seals."""


def written_since_seal(
    reports: Sequence[ShardReport], seals: Mapping[str, ShardSeal], sealed_at: str | None
) -> Iterator[Finding]:
    """Report files whose header matches the seal, but that were written later, if their content is not compared.

    Args:
        reports: The reports of one save.
        seals: Its manifest's records, by path.
        sealed_at: UTC, when the manifest was written; None without a manifest.
    """
    if sealed_at is None:
        return
    changed = {finding.path for finding in changed_headers(reports, seals)}
    for report in reports:
        modified_ns = None if report.stamp is None else report.stamp.modified_ns
        is_compared = report.level.reads_content or report.path not in seals or report.path in changed
        if is_compared or modified_ns is None:
            continue
        written_at = moment_if_any(modified_ns / 1e9 - CLOCKS_DIFFER)
        if written_at is None or written_at <= sealed_at:
            continue
        message = (
            f"was written or copied after its seal of {sealed_at}: size and header match the seal, the content is not "
            "compared; ckpttool verify --level checksum compares it"
        )
        yield note(Code.CHANGED_SINCE_SEAL, message, path=report.path)


def _header_text(schema_hash: str | None, scalars: ScalarValues) -> str:
    values = ", ".join(f"{name}={value}" for name, value in encode_scalars(scalars).items())
    return f"{schema_hash} Scalars({values})"
