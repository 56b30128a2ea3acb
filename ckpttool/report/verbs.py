"""Functions that collect everything known about a tree, and write it as one page."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint, Resolution
from ckpttool.core.domain.question import (
    STDIN,
    CheckQuestion,
    EvidenceQuestion,
    LogQuestion,
    ResumeQuestion,
    TreeQuestion,
)
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.core.storage import is_local
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.core.verbs.resolving import TRUSTED_SECONDS, Answer, resolve
from ckpttool.core.verbs.scanning import Tree, Where, tree_question
from ckpttool.core.verbs.verifying import read_once, verify
from ckpttool.health.model.events import MARKS_SPIKE, HealthEvent
from ckpttool.health.model.questions import HealthQuestion
from ckpttool.health.policies.base import judge
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.rules.checkpoints import embedding_norms
from ckpttool.health.rules.evidence import large_spikes
from ckpttool.health.verbs.health import judged
from ckpttool.postflight.verbs import last_resume
from ckpttool.report.model import Curve, PageForm, ReportQuestion, TreeReport
from ckpttool.retention.verbs import prune
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpttool.core.domain.metrics import StepMetrics, TrainingLog
    from ckpttool.core.domain.plan import Simulation
    from ckpttool.postflight.model.answers import Postflight

_DRAWN = ("embedding_local_norm", "global_norm", "loss", "skipped", "time")
"""The fields to read from a log."""


def report(question: ReportQuestion | Where = None, *, form: PageForm | str = PageForm.HTML) -> str:
    """Write a report page with everything known about a tree, for a file, a notebook or a comment.

    Args:
        question: The subject, or only the tree's path.
        form: `html` for a self-contained page, or `markdown` for less than 60,000 characters.

    Raises:
        CkptToolError: As for `resolve`.
    """
    return page(survey(question), PageForm(form))


def page(answer: TreeReport, form: PageForm) -> str:
    """Return the collected facts as a page."""
    if form is PageForm.MARKDOWN:
        from ckpttool.report.page.markdown import markdown

        return markdown(answer)
    from ckpttool.report.page.html import html

    return html(answer)


def survey(
    question: ReportQuestion | Where = None, *, own: Callable[[Answer], Simulation | None] = lambda _: None
) -> TreeReport:
    """Verify a tree at the requested level, and collect its logs, its prune plan and the free space.

    Nothing is changed.

    Args:
        question: The subject, or only the tree's path.
        own: Returns the trainer's own choice.

    Raises:
        UsageError: A log would be read from this process's own stdin, which can be read only once.
        CkptToolError: As for `resolve`.
    """
    if not isinstance(question, ReportQuestion):
        question = ReportQuestion(tree=tree_question(question))
    logs = question.choice.logs or EvidenceQuestion()
    if STDIN in logs.logs.patterns:
        raise UsageError("--log -: a report reads its logs twice; give a file")
    began = time.monotonic()
    question = replace(question, tree=replace(question.tree, sizes=True))
    with read_once() as session:
        answer = resolve(question.tree, question.choice, question.data)
        session.takes = False  # all data that two of these steps need has been read
        tree, level = answer.tree, question.choice.evidence
        # For a single shard, no other checkpoint is read for comparison; otherwise all are read in any case.
        alone = tree.focus is not None
        name = None if alone else "all"
        everything = CheckQuestion(level=level, name=name, max_age=TRUSTED_SECONDS, replicas=not alone)
        verification = verify(tree, everything).answer()
        pruning, why_not = _pruning(question)
    log = log_reader(logs.logs.columns).merged(logs.logs.patterns, tree.storage.root, keep=_DRAWN)
    health = judged(
        tree, _as_to_health(question.tree, logs), log, verification.verdicts if level is Level.NUMERICS else ()
    )
    return TreeReport(
        resolution=Resolution(
            decision=answer.decision,
            simulation=own(answer),
            strict=question.strict,
            now=time.time(),
        ),
        loaded_from=_loaded_from(answer),
        layout=tree.inventory.layout,
        trainer=None if tree.trainer is None else tree.trainer.title,
        verification=verification,
        health=health,
        curves=() if log is None else tuple(_curves(log.metrics, logs.threshold)),
        spikes=() if log is None else tuple(_spikes(log, logs.spike_threshold)),
        notes=() if log is None else log.notes,
        resume=_resume(tree, logs.logs),
        pruning=pruning,
        why_not_pruned=why_not,
        free_bytes=_free(tree.storage.root),
        settings=tuple(_settings(question)),
        resolved_from=tree.resolved_from,
        made=time.time(),
        seconds=time.monotonic() - began,
    )


def _resume(tree: Tree, logs: LogQuestion) -> Postflight | None:
    """Return the judgement of the last start in the logs. An error does not stop the report."""
    try:
        resume = last_resume(tree, logs)
    except CkptToolError:  # the log is listed as unreadable
        return None
    return None if resume is None else resume.answer


def _loaded_from(answer: Answer) -> str | None:
    """Return the absolute path of the loaded checkpoint, for readers in another folder."""
    plan, tree = answer.decision, answer.tree
    if isinstance(plan, NoResumePoint) or not is_local(plan.root):
        return None
    try:
        return tree.from_the_top(plan.load.path)
    except UsageError:  # the path differs between machines
        return None


def _settings(question: ReportQuestion) -> Iterator[tuple[str, str]]:
    """Yield the settings besides the tree that affect the answer."""
    usual, choice = ResumeQuestion(), question.choice
    asked_for = []
    for name in ("name", "prefix", "before", "allow_renames", "allow_weights_only", "require_health", "ignore_health"):
        value = getattr(choice, name)
        if value != getattr(usual, name):
            title = name.replace("_", " ")
            asked_for.append(title if value is True else f"{title} {value}")
    if question.data.new_global_batch is not None:
        asked_for.append(f"batches of {question.data.new_global_batch} samples from now on")
    if asked_for:
        yield "asked for", ", ".join(asked_for)


def _as_to_health(tree: TreeQuestion, logs: EvidenceQuestion) -> HealthQuestion:
    return HealthQuestion(
        threshold=logs.threshold,
        logs=logs.logs,
        health_file=tree.health_file,
        pipeline_stages=None if tree.config is None else tree.config.pipeline_stages,
    )


def _curves(rows: Sequence[StepMetrics], threshold: float | None) -> Iterator[Curve]:
    embedding = embedding_norms(rows)
    norms = tuple((row.step, row.global_norm) for row in rows if row.global_norm is not None)
    losses = tuple((row.step, row.loss) for row in rows if row.loss is not None)
    if embedding:
        title = "Embedding local norm"
        yield Curve(title=title, unit="sum of squares", points=embedding, threshold=threshold)
    if norms:
        yield Curve(title="Global norm", unit="L2 norm of all gradients", points=norms, shows_spikes=True)
    if losses:
        yield Curve(title="Loss", unit="of the batch", points=losses)


def _spikes(log: TrainingLog, threshold: float | None) -> Iterator[HealthEvent]:
    applied = (row for row in log.metrics if not row.skipped)
    if threshold is None:
        events = large_spikes(applied)
    else:
        events = judge(SkipPolicy(threshold=threshold, count_threshold=sys.maxsize), applied)
    yield from (event for event in events if event.kind in MARKS_SPIKE and event.step is not None)


def _pruning(question: ReportQuestion) -> tuple[Pruning | None, str | None]:
    """Return the plan of a prune, or why there is no plan. An error does not stop the report."""
    if question.keep_last is None:
        return None, None
    policy = RetentionPolicy(keep_last=question.keep_last, prefix=question.choice.prefix)
    try:
        return prune(question.tree, policy, PruneOrder(level=question.choice.evidence)), None
    except CkptToolError as error:
        return None, str(error)


def _free(root: str) -> ByteCount | None:
    if not is_local(root):
        return None
    disk = LocalDisk()
    try:
        return ByteCount(disk.room(disk.nearest(root)).free_bytes)
    except OSError:
        return None
