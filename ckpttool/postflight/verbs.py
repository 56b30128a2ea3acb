"""Judge a resume: read the logs and the plan, compare both runs, and conclude."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import LogQuestion, TreeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import IncompleteError, UnknownLayoutError, UsageError
from ckpttool.core.verbs.scanning import Tree, Where, scan, tree_question
from ckpttool.health.rules.runs import batch_of
from ckpttool.postflight.checks import checks_of, words_of
from ckpttool.postflight.conclusion import conclude
from ckpttool.postflight.headline import headline_of
from ckpttool.postflight.model import Aspect, Comparison, Judged, State, Word
from ckpttool.postflight.model.answers import Conclusion, LastResume, Outcome, Postflight, Resumed, StepSource
from ckpttool.postflight.model.questions import PostflightQuestion
from ckpttool.postflight.read.counting import counted_from_one, counts_from_zero
from ckpttool.postflight.read.logs import Runs, runs_in, runs_of
from ckpttool.postflight.read.new_order import draws_new_order
from ckpttool.postflight.read.plan import Plan, is_plan, read_plan
from ckpttool.postflight.rules.columns import ENOUGH
from ckpttool.postflight.rules.judge import NothingToCompare, Resume, compare, interval_of
from ckpttool.postflight.rules.origin import is_of_second_run
from ckpttool.postflight.rules.samples import in_steps_of, judged_by_samples
from ckpttool.trainers.registry import log_reader, trainers

if TYPE_CHECKING:
    from ckpttool.core.domain.finding import Row
    from ckpttool.core.domain.metrics import StepMetrics
    from ckpttool.trainers.base import Trainer

_HISTORY = (
    "the log of the resumed run also has the steps of the runs before it, so it does not show where the run began: "
    "give a log of the resumed run alone"
)
POLL_SECONDS = 5.0
"""Seconds between two reads of the logs while waiting."""


def postflight(where: Where = None, question: PostflightQuestion = PostflightQuestion()) -> Postflight:
    """Judge whether a run resumed as planned, by its log and the log of the run before it.

    Args:
        where: The tree; or as a path, a plan: the JSON of `ckpttool resolve`, or `-` for the plan on standard input.
        question: The logs, and the step of the save.

    Raises:
        UsageError: A log or the plan does not exist or cannot be used, or the step of the save is unknown.
        UnknownLayoutError: There is no tree at the path, and it is needed.
        NothingToResumeError: The plan chooses no checkpoint.
        IncompleteError: A log cannot be read to its end.
    """
    tree = tree_question(where)
    plan = read_plan(str(tree.path)) if is_plan(tree.path) else None
    if plan is not None:
        tree = replace(tree, path=plan.root)
    end = time.monotonic() + question.wait
    while True:
        remaining = max(0.0, end - time.monotonic())
        answer = _judged(tree, plan, question, may_wait=remaining > 0)
        if answer.conclusion.is_final or not remaining:
            return answer
        time.sleep(min(POLL_SECONDS, remaining))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What is known besides the logs."""

    tree: Tree | None
    plan: Plan | None
    question: TreeQuestion
    runs: Runs

    @property
    def saves(self) -> tuple[Step, ...]:
        """The steps of the checkpoints in the tree, ascending."""
        checkpoints = () if self.tree is None else self.tree.inventory.checkpoints
        return tuple(sorted({checkpoint.step for checkpoint in checkpoints if checkpoint.step is not None}))

    @property
    def is_plan_of_second_save(self) -> bool:
        """Whether the resumed run wrote the save of the plan, although the first run had passed its step, too."""
        if self.tree is None or self.plan is None or self.plan.saved_at is None:
            return False
        first = self.runs.after[0].step
        earlier = [
            (checkpoint.step, checkpoint.shards[-1])
            for checkpoint in self.tree.inventory.checkpoints
            if checkpoint.step is not None and checkpoint.step < first and checkpoint.shards
        ]
        if not earlier:
            return False
        step, shard = max(earlier, key=itemgetter(0))
        try:
            written = (shard.stamp or self.tree.storage.stamp(shard.path)).modified_ns
        except OSError:
            written = None
        if written is None:
            return False
        seconds = self.plan.saved_at - written / 1e9
        return is_of_second_run(self.runs.before, self.runs.after, self.plan.saved, step, seconds)

    @property
    def trainer(self) -> Trainer | None:
        """The trainer of the tree, else of the logs; None if both are unknown."""
        if self.tree is not None and self.tree.trainer is not None:
            return self.tree.trainer
        return self.logger

    @property
    def logger(self) -> Trainer | None:
        """The trainer that wrote the logs in its own format; None if the format is a general one."""
        formats = self.runs.before_formats | self.runs.after_formats
        return next((one for one in trainers() if formats & {log.name for log in one.log_formats}), None)

    def batch_sizes(self, saved: Step) -> tuple[float | None, float | None]:
        """Return the global batch sizes before and after the resume, by the plan, the config, the save or the logs."""
        config, plan = self.question.config, self.plan
        recorded = (
            []
            if self.tree is None
            else [
                checkpoint.scalars.global_batch_size
                for checkpoint in self.tree.inventory.checkpoints
                if checkpoint.step == saved
            ]
        )
        before = [None if plan is None else plan.batch_before, *recorded, batch_of(self.runs.before[::-1])]
        after = [
            None if plan is None else plan.batch_after,
            None if config is None else config.global_batch_size,
            batch_of(self.runs.after),
        ]
        return _first(before), _first(after)

    def world_sizes(self, saved: Step) -> tuple[float | None, float | None]:
        """Return the numbers of ranks before and after the resume."""
        recorded = (
            []
            if self.tree is None
            else [
                checkpoint.topology.world_size
                for checkpoint in self.tree.inventory.checkpoints
                if checkpoint.step == saved
            ]
        )
        before = [None if self.plan is None else self.plan.world_size, *recorded]
        config = self.question.config
        return _first(before), None if config is None else config.world_size


def _first(values: Sequence[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _judged(tree: TreeQuestion, plan: Plan | None, question: PostflightQuestion, *, may_wait: bool) -> Postflight:
    """Read everything once, and answer."""
    scanned = _scanned(tree, plan, question)
    reader = log_reader(question.columns, curves=True)
    root = None if scanned is None else scanned.storage.root
    runs = runs_of(
        reader,
        question.before,
        question.after,
        root=root,
        starts=() if scanned is None else start_logs(scanned),
        histories=_histories(),
        may_be_absent=may_wait,
    )
    return _compared(_Facts(tree=scanned, plan=plan, question=tree, runs=runs), question)


def last_resume(tree: Tree, logs: LogQuestion, allowed: tuple[Row, ...] = ()) -> LastResume | None:
    """Judge the last start that the logs of a tree show, by the starts before it.

    Args:
        tree: The tree, as scanned.
        logs: The logs, by default those near the tree. If there are several, each is of a later run, or of another
            rank.
        allowed: Findings that the user accepts.

    Returns:
        The answer; None if there is no log, or the logs show one start.

    Raises:
        UsageError: A log does not exist, or cannot be used.
        IncompleteError: A log cannot be read to its end.
    """
    reader = log_reader(logs.columns, curves=True)
    runs = runs_in(reader, logs.patterns, tree.storage.root, start_logs(tree))
    if not runs.after:
        return None
    # The config is not known to be that of the resumed run.
    facts = _Facts(tree=tree, plan=None, question=TreeQuestion(), runs=runs)
    first = runs.after[0]
    answer = _compared(facts, PostflightQuestion(allowed=allowed))
    return LastResume(
        start=(first.step, first.loss, first.time or len(runs.earlier)),
        answer=answer,
        is_settled=answer.conclusion.is_final and len(runs.after) >= ENOUGH,
    )


def _histories() -> frozenset[str]:
    """Return the formats of logs that also have the steps of earlier starts."""
    return frozenset(trainer.history_format for trainer in trainers() if trainer.history_format)


def start_logs(tree: Tree) -> tuple[str, ...]:
    """Return the logs near a tree if each start has its own, oldest first; else none."""
    return () if tree.trainer is None else tree.trainer.start_logs(tree.storage.root)


def _compared(facts: _Facts, question: PostflightQuestion) -> Postflight:
    """Compare both runs, and answer."""
    planned = [question.from_step, None if facts.plan is None else facts.plan.saved]
    saves = {*facts.saves, *(step for step in planned if step is not None)}
    by_default = facts.trainer is not None and facts.trainer.counts_from_zero
    if counts_from_zero(facts.runs, saves, by_default=by_default):
        facts = replace(facts, runs=counted_from_one(facts.runs))
    saved, source = _saved(facts, question)
    runs = facts.runs if saved is None else facts.runs.through(saved)
    facts = replace(facts, runs=runs)
    resumed = Resumed(saved=saved, source=source, before=runs.before_names, after=runs.after_names)
    if runs.after and _histories() & runs.after_formats:
        return _answer(facts, question, resumed, why=_HISTORY)
    if _histories() & runs.before_formats:  # the resumed run may have written the later steps
        runs = replace(runs, before=[row for row in runs.before if saved is None or row.step <= saved])
        facts = replace(facts, runs=runs)
    if not runs.after or saved is None:
        return _answer(facts, question, resumed, why=_why_not_yet(facts, saved))
    if unreached := _unreached(facts, saved, source):
        return _answer(facts, question, resumed, why=unreached)
    try:
        comparison = compare(runs.before, runs.after, _resume(facts, saved, source))
    except NothingToCompare as error:
        return _answer(facts, question, resumed, why=str(error))
    data = comparison.of(Aspect.DATA)
    is_other = data.word in {Word.DATA_OTHER, Word.DATA_REPEATED}
    if is_other and facts.tree is not None and draws_new_order(facts.tree, facts.question, saved):
        lawful = f"{data.why}; the position is right, but the random order of an epoch is drawn again"
        comparison = comparison.with_aspect(replace(data, state=State.NOT_SHOWN, why=lawful, word=None))
    why = _other_batches(facts, saved)
    if why is not None:
        comparison = _by_samples(facts, comparison, saved, why)
    return _answer(facts, question, resumed, comparison=comparison, why=why)


def _scanned(tree: TreeQuestion, plan: Plan | None, question: PostflightQuestion) -> Tree | None:
    """Scan the tree, if it is needed or named."""
    has_logs, is_named = bool(question.before and question.after), tree.path is not None and plan is None
    has_step = plan is not None or question.from_step is not None
    if has_logs and has_step and not is_named and plan is None:
        return None
    if tree.config is not None:  # it is the resumed run's, and the number of ranks that saved is to be seen
        tree = replace(tree, config=replace(tree.config, world_size=None))
    try:
        return scan(tree)
    except (UnknownLayoutError, IncompleteError):
        if is_named or not (question.before or question.after):
            raise
        if has_step:  # the plan was made on another machine
            return None
        raise UsageError(
            "the step of the save is unknown: give the checkpoint folder, a plan, or --from-step N"
        ) from None


def _saved(facts: _Facts, question: PostflightQuestion) -> tuple[Step | None, StepSource | None]:
    """Return the step of the save that the run should have resumed from."""
    if question.from_step is not None:
        return question.from_step, StepSource.OPTION
    if facts.plan is not None:
        return facts.plan.saved, StepSource.PLAN
    if not facts.runs.after:
        return None, None
    first = facts.runs.after[0].step
    earlier = [save for save in facts.saves if save < first]
    return (earlier[-1], StepSource.TREE) if earlier else (None, None)


def _why_not_yet(facts: _Facts, saved: Step | None) -> str:
    if facts.runs.after:
        first = facts.runs.after[0].step
        oldest = f", and the oldest checkpoint is that of step {facts.saves[0]}" if facts.saves else ""
        return f"the resumed run begins with step {first}{oldest}: give a plan or --from-step N"
    if saved is not None and not facts.runs.before:
        return "the logs have no step"
    return (
        "the logs show one run: the resumed run has not logged a step yet, or it repeats none; if it has its own log, "
        "give it with --after"
    )


def _unreached(facts: _Facts, saved: Step, source: StepSource | None) -> str | None:
    """Return why the run cannot have resumed from a save: only the resumed run reached its step."""
    before, after = facts.runs.before, facts.runs.after
    if not before or not after[0].step <= saved <= after[-1].step:
        return None
    named = "the plan names" if source is StepSource.PLAN else "--from-step names"
    if saved >= before[-1].step + interval_of(before):
        why = "which the first run did not reach: the resumed run has saved it"
    elif source is StepSource.PLAN and facts.is_plan_of_second_save:
        why = "which the resumed run saved again, by the time of its files"
    else:
        return None
    return (
        f"{named} step {saved}, {why}. Make the plan before the run resumes, or give the step that it resumed from "
        "with --from-step"
    )


def _resume(facts: _Facts, saved: Step, source: StepSource | None) -> Resume:
    before, after = facts.world_sizes(saved)
    known = [trainer for trainer in (facts.trainer, facts.logger) if trainer is not None]
    lost_by = next((trainer.title for trainer in known if not trainer.restores_random_state), None)
    why_lost = None if lost_by is None else f"{lost_by} restores no random-number state"
    if not known:
        why_lost = "some trainers restore no random-number state, and the checkpoint folder would show which one it is"
    return Resume(
        saved=saved,
        saves=facts.saves,
        is_planned=source is not StepSource.TREE,
        is_averaged=any(trainer.logs_mean_loss for trainer in known),
        changes_arithmetic=before is not None and after is not None and before != after,
        random_state_lost_by=why_lost,
    )


def _other_batches(facts: _Facts, saved: Step) -> str | None:
    """Return why no step of the resumed run repeats a batch, if the batch size changed."""
    before, after = facts.batch_sizes(saved)
    if before is None or after is None or before == after:
        return None
    return f"the global batch size changed from {before:g} to {after:g}, so no step repeats the same samples"


def _by_samples(facts: _Facts, comparison: Comparison, saved: Step, why: str) -> Comparison:
    """Judge data and weights by the losses of the same samples; withdraw all judgements by equal steps.

    Args:
        facts: What is known besides the logs.
        comparison: The comparison step by step, of which only the position is valid.
        saved: The step of the save, in steps of the resumed run.
        why: Why the comparison step by step is not valid.
    """
    judged = {aspect: Judged(aspect=aspect, state=State.NOT_SHOWN, why=why) for aspect in Aspect}
    judged[Aspect.POSITION] = comparison.of(Aspect.POSITION)
    before, after = facts.batch_sizes(saved)
    resume_is_right = judged[Aspect.POSITION].state is not State.CONTRADICTED
    averaged = facts.logger is not None and facts.logger.logs_mean_loss
    if before and after and after > before and not after % before and resume_is_right and not averaged:
        saved_before = saved if facts.plan is None else facts.plan.saved_before
        rows = in_steps_of(int(after // before), facts.runs.before, saved_before, saved)
        found = judged_by_samples(rows, facts.runs.after, saved)
        judged |= {one.aspect: one for one in found or ()}
    return replace(comparison, aspects=tuple(judged.values()), repeated=(), median_z=None)


def _answer(
    facts: _Facts,
    question: PostflightQuestion,
    resumed: Resumed,
    *,
    comparison: Comparison | None = None,
    why: str | None = None,
) -> Postflight:
    """Conclude, and put the answer together.

    Args:
        facts: What is known besides the logs.
        question: The question.
        resumed: The save, and the logs.
        comparison: The comparison; None without two runs.
        why: Why there is no comparison, or why the runs cannot be compared step by step.
    """
    accepted = words_of(question.allowed)
    if comparison is None:
        aspects = tuple(Judged(aspect=aspect, state=State.NOT_SHOWN, why=str(why)) for aspect in Aspect)
        conclusion = Conclusion(outcome=Outcome.UNKNOWN, missing=why, is_final=bool(facts.runs.after))
    else:
        aspects = comparison.aspects
        last = facts.runs.after[-1].step
        coming = [row.step for row in facts.runs.before if row.step > last]
        conclusion = conclude(comparison, aspects, accepted, coming, incomparable=why)
        newer = _newer_save(facts, resumed)
        if conclusion.outcome is Outcome.RESUMED and newer is not None:
            conclusion = Conclusion(outcome=Outcome.UNKNOWN, missing=newer)
    trainer = facts.trainer
    title = None if trainer is None else trainer.title
    return Postflight(
        root=None if facts.tree is None else facts.tree.inventory.root,
        resume=resumed,
        aspects=aspects,
        comparison=comparison,
        conclusion=conclusion,
        headline=headline_of(resumed, comparison, aspects, conclusion, accepted),
        assumptions=_assumptions(facts, resumed, comparison),
        checks=checks_of(aspects, conclusion, accepted, title),
        view=question.view,
    )


def _assumptions(facts: _Facts, resumed: Resumed, comparison: Comparison | None) -> tuple[str, ...]:
    """Return the conditions that nothing confirms."""
    if comparison is None or resumed.saved is None:
        return ()
    texts = []
    if facts.runs.is_renumbered:
        texts.append(
            f"The logs number the first step 0, and the answer numbers it 1, as checkpoints do: step "
            f"{comparison.first} has the number {comparison.first - 1} in the logs."
        )
    states = {judged.aspect: judged.state for judged in comparison.aspects}
    is_open = states[Aspect.DATA] is not State.PROVEN
    if None in facts.world_sizes(resumed.saved) and (is_open or states[Aspect.WEIGHTS] is not State.PROVEN):
        texts.append(
            "Both runs have the same number of ranks, precision and devices; otherwise roundings and random numbers "
            "may differ lawfully. ckpttool postflight --config confirms the number of ranks."
        )
    if None in facts.batch_sizes(resumed.saved) and is_open:
        texts.append("Both runs have the same global batch size.")
    rows: Sequence[StepMetrics] = facts.runs.before
    is_sparse = len(rows) > 1 and rows[-1].step - rows[-2].step > 1
    if is_sparse and facts.trainer is None:
        texts.append(
            "A logged loss belongs to one step. If it is the mean since the last line, the first new line may differ."
        )
    return tuple(texts)


def _newer_save(facts: _Facts, resumed: Resumed) -> str | None:
    """Return why the logs cannot confirm the save: no plan names it, and the first run passed a newer one."""
    if resumed.source is not StepSource.TREE or resumed.saved is None or not facts.runs.before:
        return None
    newer = [save for save in facts.saves if resumed.saved < save <= facts.runs.before[-1].step]
    if not newer:
        return None
    return (
        f"the run resumed from step {resumed.saved}, and the tree has step {newer[-1]}, which the first run passed: if "
        f"step {resumed.saved} was planned, give the plan or --from-step {resumed.saved}"
    )
