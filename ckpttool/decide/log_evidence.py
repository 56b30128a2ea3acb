"""What logs have to say against checkpoints, as reasons that `choose` understands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ckpttool.decide.log_runs import Home
from ckpttool.decide.policies.base import judge
from ckpttool.decide.policies.robust_z import RobustZPolicy
from ckpttool.decide.recorded_health import IGNORE_HEALTH
from ckpttool.domain.checkpoint import Checkpoint, Inventory, LayoutName
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.health import Health
from ckpttool.domain.health_events import CheckpointMark, HealthEvent, HealthJudgement, MarkState, SavedCheckpoint
from ckpttool.domain.metrics import LogAttempt, StepMetrics
from ckpttool.domain.units import Step

LARGE_SPIKE = 2.0
"""Factor over the robust limit from which a norm is held against a checkpoint. What leaves its band by less moves the
weights by less than two usual steps; and a new batch size or learning rate may lift the level that much for good."""


def saved(checkpoint: Checkpoint, layout: LayoutName) -> SavedCheckpoint:
    """Return what policies need to know of a checkpoint; its recorded health is attached to it already."""
    return SavedCheckpoint(
        name=checkpoint.name,
        step=checkpoint.step,
        recorded=checkpoint.health,
        prefix=checkpoint.prefix,
        run=checkpoint.run if layout is LayoutName.MINDFORMERS_RANK else None,
    )


def large_spikes(metrics: Iterable[StepMetrics]) -> Iterator[HealthEvent]:
    """Yield the spikes that tell against a checkpoint, by the robust z-score, however long they last.

    A spike ends where the norm comes back. The policy itself takes a long one for a new level, so that it is not stuck;
    but a training that has diverged for fifty steps has not recovered.
    """
    for event in judge(RobustZPolicy(level_shift=sys.maxsize), metrics):
        value, limit = event.value, event.limit
        if value is None or limit is None or value >= LARGE_SPIKE * limit:
            yield event


def with_judgements(
    inventory: Inventory, judgements: Sequence[HealthJudgement], *, threshold: float | None, ignore: bool
) -> Inventory:
    """Give each checkpoint the health that the log shows, where it shows one; what is too high is a reason against it.

    Args:
        inventory: With recorded health.
        judgements: One for each checkpoint, in the same order.
        threshold: What they were judged by.
        ignore: Health is no reason.
    """
    pairs = zip(inventory.checkpoints, judgements, strict=True)
    return replace(inventory, checkpoints=tuple(_judged(*pair, threshold=threshold, ignore=ignore) for pair in pairs))


def _judged(one: Checkpoint, judgement: HealthJudgement, *, threshold: float | None, ignore: bool) -> Checkpoint:
    if judgement.source != "log":
        return replace(one, health=judgement.health)
    if judgement.health is not Health.UNHEALTHY or ignore:
        return replace(one, health=judgement.health)
    norm = judgement.embedding_local_norm
    return _against(
        one,
        Finding(
            code=Code.NORM_ABOVE_THRESHOLD,
            severity=Severity.SUSPECT,
            message=f"the log shows the embedding local norm {norm:g} at its save, and the threshold is {threshold:g}",
            expected=f"below {threshold:g}",
            actual=f"{norm:g}",
            remedy=IGNORE_HEALTH,
        ),
    )


def with_marks(inventory: Inventory, marks: Sequence[CheckpointMark], code: Code) -> Inventory:
    """Hold against each checkpoint that it was saved in a suspect stretch.

    Args:
        inventory: The tree.
        marks: One for each checkpoint, in the same order.
        code: What kind of stretch it is.
    """
    checkpoints = []
    for one, mark in zip(inventory.checkpoints, marks, strict=True):
        if mark.state is MarkState.SUSPECT:
            reason = Finding(code=code, severity=Severity.SUSPECT, message=mark.reason, remedy=IGNORE_HEALTH)
            checkpoints.append(_against(one, reason))
        else:
            checkpoints.append(one)
    return replace(inventory, checkpoints=tuple(checkpoints))


def only_up_to(inventory: Inventory, limit: Step, why: str) -> Inventory:
    """Hold against each checkpoint beyond a step that the training goes back behind it.

    Args:
        inventory: The tree.
        limit: The last step that is far enough back.
        why: A clause that says what is gone around.
    """
    checkpoints = []
    for one in inventory.checkpoints:
        if one.step is None or one.step <= limit:
            checkpoints.append(one)
            continue
        message = f"step {one.step} is beyond step {limit}, {why}"
        checkpoints.append(_against(one, Finding(code=Code.REWOUND_PAST, severity=Severity.SUSPECT, message=message)))
    return replace(inventory, checkpoints=tuple(checkpoints))


def _against(one: Checkpoint, *reasons: Finding) -> Checkpoint:
    return replace(one, findings=(*one.findings, *reasons))


def log_findings(problems: Iterable[tuple[str, int, str]], count: int) -> tuple[Finding, ...]:
    """Return what could not be read in the logs.

    Args:
        problems: Log, line from 1 (0: the whole log) and what is wrong with it.
        count: How many there were in all; more than `problems` tells.
    """
    findings = []
    known = 0
    for source, line, reason in problems:
        known += 1
        whole = line == 0
        findings.append(
            Finding(
                code=Code.LOG_UNREADABLE,
                severity=Severity.UNKNOWN if whole else Severity.NOTE,
                message=reason if whole else f"{reason}; nothing was guessed from this line",
                path=source,
                line=None if whole else line,
                remedy="give a log that can be read to its end" if whole else None,
            )
        )
    if count > known:
        message = f"{count - known} more lines of the logs could not be read"
        findings.append(Finding(code=Code.LOG_UNREADABLE, severity=Severity.NOTE, message=message))
    return tuple(findings)


def no_log() -> Finding:
    """Say that there is no log to go by."""
    return Finding(
        code=Code.LOG_UNREADABLE,
        severity=Severity.UNKNOWN,
        message="there is no training log beside the checkpoints: the threshold could not be applied",
        remedy="give one with --log, or leave --health-threshold out",
    )


def trained_since(save: SavedCheckpoint, home: Home, attempts: Sequence[LogAttempt]) -> Finding | None:
    """Say how far the training came after a save; None where it was not the last start that saved it, or no further."""
    if save.step is None or home.known != len(attempts) - 1 or attempts[-1].last <= save.step:
        return None
    return Finding(
        code=Code.LOG_GOES_ON,
        severity=Severity.NOTE,
        message=f"{save.name} is of step {save.step}, and the log goes on to step {attempts[-1].last}: what was "
        "trained between is to be done again",
    )


def no_steps(sources: Sequence[str]) -> Finding:
    """Say that the logs that were to have a say show no step."""
    more = f" (nor do {len(sources) - 1} more)" if len(sources) > 1 else ""
    return Finding(
        code=Code.LOG_UNREADABLE,
        severity=Severity.UNKNOWN,
        message=f"the log shows no step{more}: what was asked of it could not be answered",
        path=sources[0],
        remedy="give the log of a rank that trained; where its columns have other names, --columns says which",
    )
