"""Judge the FP8 experiments of a plan by their logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import UnsafeError, UsageError
from ckpttool.core.logs.reading import LogReader
from ckpttool.fp8.answers.experiment import OWN
from ckpttool.fp8.files.plan import LIMIT, NAME, parse_plan
from ckpttool.fp8.frameworks.frameworks import Framework, framework_of
from ckpttool.fp8.frameworks.ran import read_arithmetic
from ckpttool.fp8.model.curves import Curve, PairedBy
from ckpttool.fp8.model.plan import AsPlanned, Experiment, Fp8Plan, Fp8Verdict
from ckpttool.fp8.rules.align import curve_of
from ckpttool.fp8.rules.gates import operands_as_planned, worst
from ckpttool.fp8.rules.judge import judge
from ckpttool.fp8.rules.measure import Run
from ckpttool.fp8.verbs.compare import FIELDS
from ckpttool.trainers.registry import log_reader

_LOGS = (".log", ".txt", ".out", ".csv", ".jsonl", ".gz")
"""Suffixes of logs to search for if no log is given."""

_DEBUG = "inspect"
"""Name of the folder of an experiment in which debug features write their own logs."""


def fp8_verdict(output: str, logs: Mapping[str, tuple[str, ...]] | None = None) -> Fp8Verdict:
    """Show the cause and its fix, or the experiments to run next.

    Args:
        output: The folder of a plan.
        logs: Files, folders or globs by experiment. For other experiments, the logs in their folders are used.

    Raises:
        UsageError: There is no plan or no such experiment, or a log does not exist.
        UnsafeError: The existing file is not a plan of ckpttool.
    """
    plan = read_plan(output)
    if plan is None:
        raise UsageError(f"there is no {NAME} in {output}: ckpttool fp8 plan writes one")
    return judged(plan, logs or {}, framework_of(plan.framework))[0]


def read_plan(output: str) -> Fp8Plan | None:
    """Return the plan in a folder, or None if the folder has no plan.

    Raises:
        UnsafeError: Something other than a plan has that name.
    """
    path = os.path.join(output, NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnsafeError(f"{path} cannot be read: {error.strerror or error}") from error
    return replace(parse_plan(data, where=path), output=os.path.abspath(output))


def judged(plan: Fp8Plan, logs: Mapping[str, tuple[str, ...]], framework: Framework) -> tuple[Fp8Verdict, Fp8Plan]:
    """Judge a plan, and return the verdict and the plan with the logs that were found."""
    names = [experiment.trial.id for experiment in plan.experiments]
    unknown = next((name for name in logs if name not in names), None)
    if unknown is not None:
        raise UsageError(f"--log {unknown}=…: the plan has no experiment of that name; it has {', '.join(names)}")
    plan = with_logs(plan, logs)
    reader = log_reader(plan.columns, curves=True)
    runs = [_run(experiment, plan, reader, framework) for experiment in plan.experiments]
    return judge(plan, runs, baseline_of(plan), recipes=framework.recipes), plan


def baseline_of(plan: Fp8Plan) -> Curve | None:
    """Return the loss of the old BF16 run, or None if its log no longer exists."""
    paths = [path for path in plan.baseline if os.path.exists(path)]
    return _curve(log_reader(plan.columns, curves=True), paths) if paths else None


def with_logs(plan: Fp8Plan, logs: Mapping[str, tuple[str, ...]]) -> Fp8Plan:
    """Return a plan with the logs of its experiments: the logs that were passed, else those in their folders."""
    experiments = (
        replace(
            experiment,
            logs=logs.get(experiment.trial.id) or tuple(_lying(os.path.join(plan.output, experiment.trial.id))),
        )
        for experiment in plan.experiments
    )
    return replace(plan, experiments=tuple(experiments))


def _lying(folder: str) -> Iterable[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name.endswith(_LOGS) and name not in OWN and not name.startswith("."):
            yield os.path.join(folder, name)


def _run(experiment: Experiment, plan: Fp8Plan, reader: LogReader, framework: Framework) -> Run:
    if not experiment.logs:
        return Run(experiment=experiment, curve=None, as_planned=(AsPlanned.UNKNOWN, None))
    paths = reader.expand(experiment.logs)
    debug = os.path.join(plan.output, experiment.trial.id, _DEBUG)
    arithmetic = read_arithmetic((*paths, *_below(debug)))
    has_config = experiment.change is not None and bool(experiment.change.files)
    result = worst(
        framework.as_planned(experiment, arithmetic),
        operands_as_planned(experiment.trial, arithmetic, needs_config=has_config),
    )
    return Run(experiment=experiment, curve=_curve(reader, paths), as_planned=result)


def _below(folder: str) -> Iterable[str]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(parent, name) for name in sorted(names) if name.endswith(_LOGS))


def _curve(reader: LogReader, paths: Iterable[str]) -> Curve | None:
    log = reader.merged(tuple(paths), keep=FIELDS)
    return None if log is None else curve_of(log.metrics, by=PairedBy.STEP)
