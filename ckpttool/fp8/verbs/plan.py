"""Planning of the most informative FP8 experiments from a verified good checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import CkptToolError, NothingToResumeError, UnknownLayoutError, UnsafeError, UsageError
from ckpttool.core.render.json import dumps
from ckpttool.core.verbs.resolving import resolve
from ckpttool.core.write import files as write_files
from ckpttool.core.write.folders import filled, foreign, place
from ckpttool.fp8.answers.experiment import files_of
from ckpttool.fp8.files.plan import NAME, plan_document
from ckpttool.fp8.frameworks.frameworks import Framework, Setting, framework_of
from ckpttool.fp8.frameworks.inspect_log import layers_of, read_statistics
from ckpttool.fp8.frameworks.lint import version
from ckpttool.fp8.frameworks.ran import read_arithmetic
from ckpttool.fp8.model.curves import Comparison, CurveClass, CurvesQuestion
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.plan import (
    Change,
    Evidence,
    Experiment,
    Fp8Plan,
    NoPlan,
    PlanQuestion,
    StartPoint,
    Trial,
    window,
)
from ckpttool.fp8.model.settings import RunArithmetic
from ckpttool.fp8.rules.compare import apart, compare
from ckpttool.fp8.rules.experiments import Known, first_round, next_round
from ckpttool.fp8.rules.grounds import (
    LONGEST,
    SHORTEST,
    LastStart,
    horizon,
    last_judged,
    last_start,
    nothing_to_learn,
    start_before,
    suspicion_of,
    without_onset,
)
from ckpttool.fp8.verbs.compare import read_runs
from ckpttool.fp8.verbs.verdict import baseline_of, judged, read_plan, with_logs
from ckpttool.health.rules.lost import pace_of

if TYPE_CHECKING:
    from ckpttool.core.domain.metrics import TrainingLog

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """The facts about the FP8 run besides its loss, and the end of the baseline's log."""

    seen: RunArithmetic
    recipe: Recipe | None
    seconds: float | None
    """Duration of a step in seconds."""
    layers: tuple[int, ...]
    layers_in: str
    baseline_ends: Step | None
    """The last step in the baseline's log, or None if the log has no step."""


def fp8_plan(question: PlanQuestion) -> Fp8Plan | NoPlan:
    """Write the folders of experiments to find the cause.

    Raises:
        UsageError: The framework does not support FP8 training, or a round's input is missing.
        NothingToResumeError: There is no checkpoint before the gap.
        UnsafeError: The folder has other contents, or logs of experiments.
    """
    framework = framework_of(question.framework)
    if question.horizon is not None and not SHORTEST <= question.horizon <= LONGEST:
        raise UsageError(f"--horizon takes {SHORTEST} to {LONGEST:,} steps, not {question.horizon}")
    old = read_plan(question.output)
    if old is None and foreign(question.output, ()):
        raise UnsafeError(f"{question.output} has no plan of ckpttool: name a new folder")
    if question.round > 1:
        if old is None:
            raise UsageError(f"there is no plan in {question.output} yet: omit --round")
        if question.horizon is not None:
            raise UsageError("all rounds of a plan have the same length: --horizon is only for a new folder")
        if question.round > old.round + 1:
            raise UsageError(f"the plan in {question.output} is at round {old.round}: the next one is {old.round + 1}")
        answer = _further(old, question, framework)
    else:
        if old is not None and any(experiment.logs for experiment in with_logs(old, {}).experiments):
            raise UnsafeError(f"{question.output} has logs of experiments: name a new folder, or plan the next round")
        answer = _first(question, framework)
    if isinstance(answer, Fp8Plan):
        _write(answer, old)
    return answer


def _first(question: PlanQuestion, framework: Framework) -> Fp8Plan | NoPlan:
    if question.curves is None:
        raise UsageError("give --baseline and --candidate: the plan depends on how they differ")
    runs = read_runs(question.curves)
    baseline, candidate, *repeats = runs.curves
    comparison = compare(baseline, candidate, repeats, terms=runs.terms)
    suspicion = suspicion_of(comparison)
    why = nothing_to_learn(comparison)
    if why is not None:
        return NoPlan(reason=why, suspicion=suspicion)
    facts = _candidate(question, framework, runs.logs[1], baseline.steps)
    start = _start(question, question.curves, comparison)
    onset = comparison.onset
    limit = comparison.limit or 0.0
    if question.horizon is not None:
        steps: int | None = question.horizon
    elif onset is None or comparison.kind is CurveClass.INCONCLUSIVE:
        steps = without_onset(comparison.first or Step(0), comparison.last or Step(0))
    else:
        far = apart(baseline, candidate, metric=runs.terms.metric)
        steps = horizon(far.steps, far.differences, onset, start=start.step, limit=limit)
    if steps is None:
        why = "the gap is below three times the smallest visible difference: no experiment of 5,000 steps can decide"
        return NoPlan(reason=why, suspicion=suspicion)
    plan = Fp8Plan(
        round=1,
        framework=question.framework,
        framework_version=question.framework_version,
        engine_version=question.engine_version,
        recipe=facts.recipe,
        suspicion=suspicion,
        start=start,
        horizon=steps,
        window=window(start.step, steps),
        limit=limit,
        baseline=tuple(map(os.path.abspath, runs.logs[0].sources)),
        candidate=tuple(map(os.path.abspath, runs.logs[1].sources)),
        columns=question.curves.columns,
        experiments=(),
        extras=framework.extras(_arguments(facts.seen)),
        layers=facts.layers,
        layers_in=facts.layers_in,
        output=os.path.abspath(question.output),
        notes=tuple(_notes(comparison, facts, start)),
    )
    return _with(plan, first_round(Known.of(plan, framework.recipes)), question, framework, facts)


def _further(old: Fp8Plan, question: PlanQuestion, framework: Framework) -> Fp8Plan | NoPlan:
    """Add experiments that give more information than those already run."""
    if question.framework != old.framework:
        raise UsageError(f"the plan is for {old.framework}, and so are all its rounds")
    verdict, plan = judged(old, {}, framework)
    planned = [experiment.trial for experiment in plan.experiments]
    trials = next_round(question.round, Known.of(plan, framework.recipes), verdict, planned)
    if not trials:
        missing = "" if verdict.next is None else f" without {', '.join(verdict.next.ids)}"
        why = f"{verdict.kind.value}: {verdict.because}: no further experiment would show more{missing}"
        return NoPlan(reason=why, suspicion=plan.suspicion)
    question = replace(
        question,
        framework_version=question.framework_version or plan.framework_version,
        engine_version=question.engine_version or plan.engine_version,
    )
    arithmetic = read_arithmetic([path for path in (*plan.candidate, *question.stats) if os.path.exists(path)])
    old_run = baseline_of(plan)
    candidate = _Candidate(
        seen=arithmetic,
        recipe=plan.recipe,
        seconds=None,
        layers=plan.layers,
        layers_in=plan.layers_in,
        baseline_ends=old_run.steps[-1] if old_run is not None and old_run.steps else None,
    )
    return _with(replace(plan, round=question.round), trials, question, framework, candidate)


def _start(question: PlanQuestion, curves: CurvesQuestion, comparison: Comparison) -> StartPoint:
    """Find the newest good checkpoint before the gap."""
    tree = question.tree
    if question.checkpoint_step is not None:
        path = None if tree is None else os.path.abspath(tree)
        step = question.checkpoint_step
        return StartPoint(name=None, step=step, path=path, evidence=Evidence.TRUSTED, has_history=None)
    is_early = comparison.kind is CurveClass.EARLY
    before = start_before(comparison, curves.switch_step)
    try:
        answer = resolve(TreeQuestion(path=tree), ResumeQuestion(before=before))
    except UnknownLayoutError:
        if tree is not None or not is_early:
            raise
        answer = None
    decision = None if answer is None else answer.decision
    if isinstance(decision, ResumePlan):
        chosen = decision.point.checkpoint
        path = os.path.abspath(decision.root)
        return StartPoint(
            name=chosen.name,
            step=decision.point.step,
            path=path,
            evidence=Evidence.RESOLVED,
            has_history=_has_history(decision.root, chosen.name),
        )
    if is_early and curves.switch_step is None:
        return StartPoint(name=None, step=Step(0), path=None, evidence=Evidence.SCRATCH, has_history=False)
    where = tree or (decision.root if decision is not None else ".")
    raise NothingToResumeError(
        f"{where} has no good checkpoint at or before step {before}, and later ones have the gap; ckpttool resolve "
        f"--before {before} shows why, and --checkpoint-step uses one without a check"
    )


def _has_history(root: str, name: str) -> bool | None:
    """Return True if a checkpoint has a scale history, else None, because data other than tensors may be unlisted."""
    from ckpttool.inspect.verbs import inspect

    names = [row.name for row in inspect(tree=root, checkpoint=name).tensors]
    return True if any("_extra_state" in log_name for log_name in names) else None


def _candidate(question: PlanQuestion, framework: Framework, log: TrainingLog, baseline: Sequence[Step]) -> _Candidate:
    """Read the candidate's settings, pace and layers from its own logs."""
    arithmetic = read_arithmetic((*log.sources, *question.stats))
    printed = arithmetic.argument("fp8_recipe") or arithmetic.recipe
    recipes = {recipe.value: recipe for recipe in Recipe}
    attempts = log.attempts
    measured, _ = read_statistics(question.stats)
    layers, inside = layers_of(measured, arithmetic, framework.first_layer)
    return _Candidate(
        seen=arithmetic,
        recipe=question.recipe or recipes.get(printed or ""),
        seconds=pace_of(attempts[-1].rows if attempts else log.metrics),
        layers=layers,
        layers_in=inside,
        baseline_ends=baseline[-1] if baseline else None,
    )


def _arguments(arithmetic: RunArithmetic) -> Mapping[str, str] | None:
    return None if arithmetic.arguments is None else dict(arithmetic.arguments)


def _notes(comparison: Comparison, candidate: _Candidate, start: StartPoint) -> list[str]:
    notes = list(comparison.notes)
    if candidate.recipe is None:
        notes.append(
            "the candidate's recipe is unknown (--recipe): experiments that only a delayed scale needs are planned "
            "as well"
        )
    if start.evidence is Evidence.TRUSTED:
        notes.append(f"the checkpoint of step {start.step} is used without a check")
        onset = comparison.onset
        if onset is not None and start.step > onset.not_before:
            notes.append(f"the gap may have begun at step {onset.not_before}: that checkpoint may already have it")
    if not candidate.layers:
        notes.append("the number of layers is unknown (--stats, or a log that prints its arguments): no layers")
    return notes


def _with(
    plan: Fp8Plan, trials: Sequence[Trial], question: PlanQuestion, framework: Framework, candidate: _Candidate
) -> Fp8Plan:
    """Return the plan with these trials added, expressed in the framework's settings."""
    last = _last_of(question, plan, candidate.baseline_ends) if any(trial.from_last for trial in trials) else ""
    note = last.note if isinstance(last, LastStart) else None
    seen, is_scratch = candidate.seen, plan.start.evidence is Evidence.SCRATCH
    setting = Setting(
        folder=plan.output,
        first_step=plan.start.step,
        last_step=Step(plan.start.step + plan.horizon),
        load=None if is_scratch else plan.start.path or "<the folder of the candidate's checkpoints>",
        recipe=plan.recipe,
        framework_version=_numbers(question.framework_version, "--framework-version"),
        engine_version=_numbers(question.engine_version, "--te-version"),
        arguments=_arguments(seen),
        in_e5m2=seen.argument("fp8") != "e4m3",
    )
    hours = None
    if candidate.seconds is not None and question.devices is not None:
        hours = round(candidate.seconds * plan.horizon * question.devices / _SECONDS_PER_HOUR, 3)
    experiments = list(plan.experiments)
    for trial in trials:
        trial_setting = replace(setting, folder=os.path.join(plan.output, trial.id))
        if trial.from_last and isinstance(last, LastStart):
            trial_setting = replace(
                trial_setting, first_step=last.step, last_step=Step(last.step + plan.horizon), load=last.path
            )
        change = last if trial.from_last and isinstance(last, str) else framework.change(trial, trial_setting)
        if trial.from_last and note is not None and isinstance(change, Change):
            change = replace(change, notes=(*change.notes, note))
        experiment = Experiment(
            trial=trial,
            change=change if isinstance(change, Change) else None,
            reason=None if isinstance(change, Change) else f"not expressible here: {change}",
            first_step=trial_setting.first_step,
            last_step=trial_setting.last_step,
            device_hours=hours,
        )
        experiments.append(experiment)
    return replace(plan, experiments=tuple(experiments), notes=(*plan.notes, *filter(None, (note,))))


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else version(text, option)


def _last_of(question: PlanQuestion, plan: Fp8Plan, ends: Step | None) -> LastStart | str:
    """Return the start for BF16 on the candidate's weights, or why none exists. `ends` is the old log's last step."""
    tree = TreeQuestion(path=question.tree or plan.start.path)
    try:
        decisions = [resolve(tree, ResumeQuestion(before=step)).decision for step in (None, last_judged(plan, ends))]
    except CkptToolError as error:
        why = "name the folder of its checkpoints (DIR)" if isinstance(error, UnknownLayoutError) else f"{error}"
        return f"the candidate's last checkpoint is unknown: {why}"
    good = {
        decision.point.step: os.path.abspath(decision.root)
        for decision in decisions
        if isinstance(decision, ResumePlan)
    }
    return last_start(plan, ends, good)


def _write(plan: Fp8Plan, old: Fp8Plan | None) -> None:
    """Write a folder for each experiment without a log there, and then the plan, which names them."""
    before = {} if old is None else {experiment.trial.id: experiment for experiment in old.experiments}
    with filled(plan.output) as output:
        for experiment in plan.experiments:
            name = experiment.trial.id
            folder = os.path.join(output, name)
            names = files_of(before[name], old).keys() if name in before and old is not None else ()
            if name in before and (experiment.trial.round < plan.round or foreign(folder, names)):
                continue
            texts = files_of(experiment, plan)
            place(folder, {file: text.encode() for file, text in texts.items()}, instead_of=names)
        text = dumps(plan_document(plan))
        write_files.replace(os.path.join(output, NAME), text.encode(), overwrite=True, backup=False)
