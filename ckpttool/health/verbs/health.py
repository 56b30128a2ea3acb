"""Judge the health of checkpoints, and update the health file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, Severity, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.verdict import Verdict
from ckpttool.core.errors import UsageError, WriteFailedError
from ckpttool.core.storage import above, assert_changeable, path_on_machines
from ckpttool.core.verbs.scanning import Tree, Where, health_file_near, health_file_of, recorded_names, tree_of
from ckpttool.health.model.answers import HealthAnswer
from ckpttool.health.model.events import HealthReport
from ckpttool.health.model.questions import HealthQuestion
from ckpttool.health.model.reading import LogReading
from ckpttool.health.rules.checkpoints import (
    assert_read_to_its_end,
    embedding_norms,
    newest,
    other_findings,
    weigh,
    with_drift,
    with_newest,
    with_weights,
)
from ckpttool.health.rules.embedding import judge_checkpoints
from ckpttool.trainers.abilities import HealthFile
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from ckpttool.core.domain.metrics import TrainingLog

LOCK_SECONDS = 60.0
"""Seconds to wait for another ckpttool process that writes the health file; each needs the lock for milliseconds."""


def health(
    tree: Tree | Where = None, question: HealthQuestion = HealthQuestion(), verdicts: Sequence[Verdict] = ()
) -> HealthAnswer:
    """Check which checkpoints are healthy: by the training log, the recorded health, and the shards.

    Args:
        tree: The answer of `scan`, or the tree to scan.
        question: The threshold and the evidence to judge by.
        verdicts: The verdicts on the tree's checkpoints at level NUMERICS, to judge the shards as well.

    Raises:
        UsageError: A log does not exist, or the question is invalid.
        IncompleteError: With `write`, a log could not be read to the end.
        LockedError: Another process writes the health file.
        UnsafeError: The record is not in a folder of this machine, so it cannot be written.
        WriteFailedError: The record could not be written; nothing was changed.
        NotDurableError: The record was written, but the disk did not confirm it.
    """
    tree = tree_of(tree)
    if question.write:
        assert_writable(tree, question)
    log = log_reader(question.logs.columns).merged(question.logs.patterns, tree.storage.root)
    if question.write and log is not None:
        assert_read_to_its_end(log)
    return judged(tree, question, log, verdicts)


def judged(
    tree: Tree, question: HealthQuestion, log: TrainingLog | None, verdicts: Sequence[Verdict] = ()
) -> HealthAnswer:
    """Answer as `health` does, with a log that was already read. `log` is None if there is no log."""
    inventory = tree.inventory
    report = judge_checkpoints(inventory, log, threshold=question.threshold, pipeline_stages=question.pipeline_stages)
    weights = {verdict.key: weigh(verdict) for verdict in verdicts}
    report = with_newest(with_drift(with_weights(report, weights, inventory), inventory), inventory)
    file = health_file_of(tree.layout)
    place = question.health_file or (None if file is None else _config_near(tree, file.name))
    written = False
    if question.write and file is not None:
        place = place or os.path.join(above(inventory.root), file.name)
        written = _write(place, file, tree, report)
        report = replace(report, findings=_after_writing(report, tree))
    findings = (*report.findings, *other_findings(inventory, log, verdicts))
    return HealthAnswer(
        root=inventory.root,
        report=replace(report, findings=findings),
        newest=newest(report, inventory),
        reading=None if log is None else LogReading.of(log),
        points=() if log is None else embedding_norms(log.metrics),
        weights=tuple(weights[checkpoint.key] for checkpoint in inventory.checkpoints if checkpoint.key in weights),
        health_file=place,
        written=written,
    )


def _config_near(tree: Tree, name: str) -> str | None:
    return path_on_machines(health_file_near(tree.storage.root, name), tree.storage.root, tree.inventory.root)


def assert_writable(tree: Tree, question: HealthQuestion) -> None:
    """Check that a record can be written for a tree, and that a threshold is given.

    Raises:
        UsageError: No threshold is given, or the trainer has no health file.
        UnsafeError: The tree is in no folder of this machine.
    """
    if question.health_file is None:
        assert_changeable(tree.storage.root)
    if question.threshold is None:
        raise UsageError("--write needs a --threshold")
    if health_file_of(tree.layout) is None:
        raise UsageError("--write: the trainer of this tree has no health file that ckpttool knows")
    refusals = _nameless(tree)
    if refusals and len(refusals) == len(tree.inventory.checkpoints):
        why = next(iter(refusals.values())).why
        raise UsageError(f"--write {why}; resolve --health-threshold rates checkpoints without a record")


def _nameless(tree: Tree) -> dict[str, Refusal]:
    """Return the reasons why checkpoints have no name in the health file, by checkpoint name."""
    named = ((checkpoint, tree.layout.recorded_name(checkpoint)) for checkpoint in tree.inventory.checkpoints)
    return {checkpoint.name: name for checkpoint, name in named if isinstance(name, Refusal)}


def _after_writing(report: HealthReport, tree: Tree) -> tuple[Finding, ...]:
    """Return the findings that remain after the record was corrected."""
    settled = (replace(finding, severity=Severity.NOTE) for finding in report.findings)
    left_out = (
        unknown(Code.CANNOT_ANSWER, f"{name} was not written to the record: --write {refusal.why}")
        for name, refusal in _nameless(tree).items()
    )
    return (*settled, *left_out)


def _write(place: str, file: HealthFile, tree: Tree, report: HealthReport) -> bool:
    """Update the health file from the log, and return whether it was changed."""
    assert_changeable(place)
    from ckpttool.core.write.files import locked
    from ckpttool.core.write.files import replace as write

    judged = [
        (name, judgement.health)
        for name, judgement in zip(recorded_names(tree.layout, tree.inventory), report.judgements, strict=True)
        if judgement.source == "log" and name is not None
    ]
    with locked(place, timeout=LOCK_SECONDS):
        old = _content(place)
        try:
            new = file.updated(old, judged)
        except ValueError as error:
            raise WriteFailedError(f"{place} is not a health file ({error}); nothing was changed") from None
        if new == old:
            return False
        write(place, new, overwrite=True, backup=True)
    return True


def _content(place: str) -> bytes | None:
    try:
        with open(place, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WriteFailedError(f"{place} cannot be read: {error.strerror or error}; nothing was changed") from None
