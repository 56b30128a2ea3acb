"""An engine that looks at nothing: what it is asked for was looked at where it lies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from ckpttool.core.domain.finding import Code, Row, Severity, damage, unknown, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.verify.check import refused
from ckpttool.core.verify.observation import Observation
from ckpttool.nodes.findings import NodesCode


class RecordedEngine:
    """Gives again what was told of each shard."""

    def __init__(self, report_of: Callable[[str], ShardReport | None], *, but: Collection[Row] = ()) -> None:
        """Take what tells of a shard, by its path.

        Args:
            report_of: None where nobody looked at it.
            but: What is not to be told: nobody asked how far the numbers are from those of the save before.
        """
        self._told = report_of
        self._but = but

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation a task, in the order of the tasks; of one file that is shared out, but one."""
        visited = set()
        for task in tasks:
            is_retry = task.path in visited
            visited.add(task.path)
            yield self._observed(task, is_retry=is_retry)

    def _observed(self, task: CheckTask, *, is_retry: bool) -> Observation:
        report = self._told(task.path)
        if report is None:
            message = "is listed, and nobody looked at it where it lies: unknown, not damaged"
            remedy = (
                "run ckpttool part again on its machine; where its save's own records lie on another one, nothing "
                "there tells that it belongs to a save: put them on one disk"
            )
            return refused(task, unknown(NodesCode.NOT_LOOKED_AT, message, path=task.path, remedy=remedy))
        report = replace(report, rank=task.rank, role=task.role)
        if self._but:
            findings = tuple(finding for finding in report.findings if finding.code not in self._but)
            report = replace(report, findings=findings)
        if is_retry:
            report = replace(report, bytes_read=type(report.bytes_read)(0))
        if report.level < task.level:
            finding = unknown(
                NodesCode.NOT_LOOKED_AT,
                f"was looked at where it lies by its {report.level.word} alone: unknown, not damaged",
                path=task.path,
                expected=task.level.word,
                actual=report.level.word,
                remedy=f"run ckpttool part --level {task.level.word} on its machine",
            )
            report = replace(report, findings=(*report.findings, finding))
        elif _is_uncompared(task, report) and task.seal is not None and report.digest is not None:
            report = _compared(task.seal, report)
        if report.level >= task.level and _is_uncompared(task, report):
            message = "was read where no record of its checksum lies, and the record where it does not: not compared"
            remedy = "put the record on its machine, too, and run ckpttool part there again"
            finding = unknown(NodesCode.NOT_LOOKED_AT, message, path=task.path, remedy=remedy)
            report = replace(report, findings=(*report.findings, finding))
        return Observation(task=task, report=report)


OF_THE_SAVE_BEFORE = frozenset({Code.NORM_JUMP, Code.ALL_ZERO_TENSOR})
"""What is found by the numbers of the save before alone."""

OF_CONTENT = OF_THE_SAVE_BEFORE | {Code.CHECKSUM_MISMATCH, Code.CHECKSUM_MISSING, Code.NONFINITE_VALUES}
"""What no header tells, so that who compares a save with the headers of others does not hear it of these."""


def _is_uncompared(task: CheckTask, report: ShardReport) -> bool:
    """Tell whether a record of one machine says what a file of another one must be, and nobody compared them."""
    has_record = task.seal is not None or task.sha256 is not None
    is_asked = task.level >= Level.CHECKSUM and not report.checksum_matched
    return has_record and is_asked and worst(report.findings) < Severity.UNKNOWN


def _compared(seal: ShardSeal, report: ShardReport) -> ShardReport:
    """Compare what is recorded of a file with the hash that was taken of it where it lies."""
    digest = None if report.digest is None else report.digest.xxh3_128
    if digest == seal.xxh3_128:
        findings = tuple(finding for finding in report.findings if finding.code is not Code.CHECKSUM_MISSING)
        return replace(report, checksum_matched=True, findings=findings)
    finding = damage(
        Code.CHECKSUM_MISMATCH,
        f"its bytes are not what another machine's manifest recorded on {seal.first_seen}",
        path=report.path,
        expected=seal.xxh3_128,
        actual=digest,
        remedy="resume from another checkpoint, or copy this shard again from where it was whole",
    )
    return replace(report, findings=(*report.findings, finding))
