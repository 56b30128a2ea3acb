"""What was seen of a shard, to its report: do the checksums agree, are the numbers sane?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckpttool.domain.finding import worst
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import CheckTask, Level, ShardDigest, ShardReport
from ckpttool.verify.check import changed, check, failed
from ckpttool.verify.observation import Observation


def check_and_judge(task: CheckTask) -> Observation:
    """Look at one shard, and judge it where it is seen whole: its report takes a hundredth of the memory.

    Thousands of tensors are seen faster than one thread could judge them, and would pile up before it.
    """
    observed = check(task)
    return (
        observed
        if task.part is not None or observed.content is None
        else Observation(task=task, report=judge([observed]))
    )


def judge(observations: Sequence[Observation]) -> ShardReport:
    """Judge one shard by everything that was seen of it.

    Args:
        observations: Of one shard: one, or one for each of its parts.
    """
    ordered = sorted(
        observations, key=lambda observed: observed.task.part or (0, 0)
    )  # of several equal reasons always the same one
    refused = [observed for observed in ordered if observed.content is None]
    if refused:  # a header alone; or, where content was asked for, why it could not be read
        return max(refused, key=lambda observed: worst(observed.report.findings)).report
    end = max(observed.content.end for observed in ordered if observed.content is not None)
    size = ordered[0].report.stamp.size if ordered[0].report.stamp else 0
    if len({observed.report.stamp for observed in ordered}) > 1 or end != size:
        message = "changed between the reading of its parts: somebody writes it"
        return changed(ordered[0].task, message).report
    try:
        return _judged(ordered)
    except ValueError as error:  # parts of one unchanged file that contradict each other: no disk should do that
        message = f"two reads of it do not fit together ({error}): unknown, not damaged"
        return failed(ordered[0].task, message).report


def _judged(observations: Sequence[Observation]) -> ShardReport:
    """Judge a shard whose every byte was seen.

    Raises:
        ValueError: The observations are not of one file.
    """
    from ckpttool.verify.checks.checksum import judge_checksums
    from ckpttool.verify.checks.numerics import judge_numbers, stats_of
    from ckpttool.verify.kernels.passes import join_passes

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
    findings = (*observed.report.findings, *findings, *judge_numbers(observed.task.path, stats))
    return replace(
        observed.report,
        checksum_matched=matched,
        findings=findings,
        digest=digest,
        stats=stats,
        bytes_read=ByteCount(sum(part.report.bytes_read for part in observations)),
    )
