"""Look at what FP8 would do to a checkpoint's tensors, without the trainer and without a device that has it."""

from __future__ import annotations

from functools import partial

from ckpttool.api.inspecting import TIMEOUT_SECONDS, side_of, tasks_of
from ckpttool.api.verifying import cores, counted
from ckpttool.decide.fp8.risk import is_wanted, layers_of, ranked
from ckpttool.domain.finding import Severity
from ckpttool.domain.fp8_probe import Fp8Probe, ProbeQuestion, TensorNumbers
from ckpttool.domain.verdict import Level, ShardReport
from ckpttool.verify.check import check
from ckpttool.verify.engines.threads import ThreadEngine
from ckpttool.verify.fp8_probe import probe_shard
from ckpttool.verify.report import collect
from ckpttool.verify.session import completed


def fp8_probe(
    path: str | None = None,
    question: ProbeQuestion = ProbeQuestion(),  # noqa: B008  a frozen value
    *,
    checkpoint: str | None = None,
    layout: str | None = None,
) -> Fp8Probe:
    """Tell what each recipe of FP8 would do to the tensors of a checkpoint or of a shard.

    Args:
        path: A shard of any format, a tree (its newest whole checkpoint), `DIR:NAME`, or a checkpoint's name; None:
            `DEFAULT_DIR`, else in or around the current folder.
        question: What is asked of every tensor.
        checkpoint: A checkpoint of that tree.
        layout: Look for this layout alone.

    Raises:
        UnknownLayoutError: There is nothing that ckpttool knows.
        UsageError: No checkpoint has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    side = side_of(path, checkpoint=checkpoint, layout=layout, whole=True)
    look = partial(probe_shard, question=question, wanted=partial(is_wanted, optimizer=question.optimizer))
    engine = partial(ThreadEngine, jobs=cores(), timeout=TIMEOUT_SECONDS)
    reports: list[ShardReport] = []
    tensors: list[TensorNumbers] = []
    for observed in counted(tasks_of(side), partial(check, look=look), lambda work: engine(work=work)):
        reports.append(observed.report)
        tensors += observed.probed
    findings = completed(collect(side.checkpoint, reports, Level.STRUCTURE).findings, side.checkpoint)
    found = ranked(tensors, question)
    return Fp8Probe(
        inventory=side.tree.inventory,
        checkpoint=side.checkpoint.name if side.file is None else side.file,
        step=side.checkpoint.step,
        question=question,
        read_all=all(finding.severity is not Severity.UNKNOWN for finding in findings),
        tensors=found,
        layers=layers_of(found),
        findings=tuple(findings),
    )
