"""Evidence in logs for the choice of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import UsageError
from ckpttool.health.read.asd_events import detector_events
from ckpttool.health.read.logs import written
from ckpttool.health.read.timeline_json import REPLAY_HEAD, REPLAY_LIMIT, is_replay, parse_timeline
from ckpttool.health.rules.embedding import judge_checkpoints
from ckpttool.health.rules.evidence import Evidence, ReadLogs, weigh
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Inventory
    from ckpttool.core.domain.metrics import TrainingLog
    from ckpttool.core.domain.question import EvidenceQuestion
    from ckpttool.health.model.events import HealthTimeline


def gather(
    inventory: Inventory, question: EvidenceQuestion, *, root: str, stages: int | None, ignore: bool
) -> Evidence:
    """Read the logs and apply them to the checkpoints.

    Args:
        inventory: The inventory with recorded health; with sizes and times if strikes have times.
        question: The logs, and how to judge them.
        root: The path of the tree; logs next to it are also used.
        stages: Pipeline stages, if known.
        ignore: Whether to ignore health as a reason.

    Raises:
        UsageError: A log does not exist or needs an option, or a spike is to be avoided without any log.
    """
    reader = log_reader(question.logs.columns)
    timelines = {name: timeline_in(name) for name in reader.expand(question.timeline)}
    names = tuple(name for name, line in timelines.items() if line is None)
    logs_root = root if question.threshold is not None or question.spike is not None else None
    log = reader.merged((*question.logs.patterns, *names), logs_root)
    if log is None and question.spike is not None:
        raise UsageError("no training log was found near the checkpoints: give --log")
    detected, _ = detector_events(names)
    logs = ReadLogs(
        log=None if log is None else _without_detectors(log, {event.source for event in detected}, reader.no_format),
        detected=detected,
        timelines=tuple(timeline for timeline in timelines.values() if timeline is not None),
        written=written(inventory.checkpoints),
    )
    report = None
    if question.threshold is not None:
        report = judge_checkpoints(inventory, logs.log, threshold=question.threshold, pipeline_stages=stages)
    return weigh(inventory, logs, question, report, ignore=ignore)


def _without_detectors(log: TrainingLog, sources: Collection[str], no_format: str) -> TrainingLog:
    """Return the log without the expected report that a detector's own log has no steps."""
    problems = log.problems
    remaining = tuple(problem for problem in problems if problem.reason != no_format or problem.source not in sources)
    return replace(log, problems=remaining, problem_count=log.problem_count - len(problems) + len(remaining))


def timeline_in(path: str) -> HealthTimeline | None:
    """Return the timeline of a saved replay, or None if the file is something else, possibly a log.

    Raises:
        UsageError: The file begins like a saved replay, but is not one.
    """
    try:
        if not os.path.isfile(path):  # a pipe can be read only once, and a device has no end
            return None
        with open(path, "rb") as file:
            head = file.read(REPLAY_HEAD)
            if not is_replay(head):
                return None
            data = head + file.read(REPLAY_LIMIT)
    except OSError:
        return None  # the log reader reports the problem of a file
    return parse_timeline(data, source=path)
