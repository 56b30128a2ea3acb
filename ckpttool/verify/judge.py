"""All looks at one shard to its report: do the checksums agree, are the numbers sane?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckpttool.domain.finding import Code, Severity, worst
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import CheckTask, Level, ShardDigest, ShardReport
from ckpttool.verify.check import check, failed
from ckpttool.verify.look import Look


def check_and_judge(task: CheckTask) -> Look:
    """Look at one shard, and judge it where it is seen whole: its report takes a hundredth of the memory.

    Thousands of tensors are seen faster than one thread could judge them, and would pile up before it.
    """
    look = check(task)
    return look if task.part is not None or look.content is None else Look(task=task, report=judge([look]))


def judge(looks: Sequence[Look]) -> ShardReport:
    """Judge one shard by everything that was seen of it.

    Args:
        looks: Of one shard: one, or one for each of its parts.
    """
    ordered = sorted(looks, key=lambda look: look.task.part or (0, 0))  # of several equal reasons always the same one
    refused = [look for look in ordered if look.content is None]
    if refused:  # a header alone; or, where content was asked for, why it could not be read
        return max(refused, key=lambda look: worst(look.report.findings)).report
    end = max(look.content.end for look in ordered if look.content is not None)
    size = ordered[0].report.stamp.size if ordered[0].report.stamp else 0
    if len({look.report.stamp for look in ordered}) > 1 or end != size:
        message = "changed between the reading of its parts: somebody writes it"
        return failed(ordered[0].task, Code.CHANGED_WHILE_READING, Severity.UNKNOWN, message).report
    try:
        return _judged(ordered)
    except ValueError as error:  # parts of one unchanged file that contradict each other: no disk should do that
        message = f"two reads of it do not fit together ({error}): unknown, not damaged"
        return failed(ordered[0].task, Code.UNREADABLE, Severity.UNKNOWN, message).report


def _judged(looks: Sequence[Look]) -> ShardReport:
    """Judge a shard whose every byte was seen.

    Raises:
        ValueError: The looks are not of one file.
    """
    from ckpttool.verify.checks.checksum import judge_checksums
    from ckpttool.verify.checks.numerics import judge_numbers, stats_of
    from ckpttool.verify.kernels.passes import join_passes

    look, content = looks[0], join_passes([look.content for look in looks if look.content is not None])
    matched, findings = judge_checksums(look, content)
    stats = stats_of(content) if look.task.level is Level.NUMERICS else ()
    digest = None
    if content.xxh128 is not None:
        chunks = tuple(chunk.xxh128 for chunk in content.chunks if chunk.xxh128 is not None)
        digest = ShardDigest(xxh3_128=content.xxh128, chunks=chunks)
    findings = (*look.report.findings, *findings, *judge_numbers(look.task.path, stats))
    return replace(
        look.report,
        checksum_matched=matched,
        findings=findings,
        digest=digest,
        stats=stats,
        bytes_read=ByteCount(sum(part.report.bytes_read for part in looks)),
    )
