"""Measurement of a plan's runs: whether each is valid, its distance from BF16, and the closed share of the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Curve
from ckpttool.fp8.model.fp8 import Gemm
from ckpttool.fp8.model.plan import (
    REFERENCE,
    REGROUPED,
    REPEATED,
    UNCHANGED,
    AsPlanned,
    Experiment,
    Fp8Plan,
    Gate,
    Outcome,
    Shown,
    Trial,
)
from ckpttool.fp8.rules.gates import gate, inside
from ckpttool.fp8.rules.noise import limit_of
from ckpttool.fp8.rules.shares import Stretch, floor_of, outcome, recovered, recovery, stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An experiment and the contents of its logs."""

    experiment: Experiment
    curve: Curve | None
    """Loss of the run by step, or None if there is no log."""
    as_planned: tuple[AsPlanned, str | None]
    """Whether the run was as planned according to the logs, and a text about errors and unknowns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements that a verdict uses."""

    plan: Fp8Plan
    experiments: Mapping[str, Experiment]
    shown: Mapping[str, Shown]
    """Results by experiment, in the order of the plan."""
    baseline: Stretch | None
    """Distance from the old baseline to B in the window."""
    stretches: Mapping[str, Stretch]
    """Distance from BF16 for each valid experiment."""
    floor: float
    """Difference between two paired runs with equal settings, in units of the loss. Infinite if unknown."""
    limit: float
    """The smallest gap that counts. Infinite if unknown."""
    alike: Sequence[Sequence[str]]
    """Groups of valid experiments with the same arithmetic whose losses are equal to the last digit."""

    def outcome(self, name: str) -> Outcome | None:
        """Return the effect of an experiment on the gap, or None if it was not planned or does not count."""
        return self.shown[name].outcome if name in self.shown else None

    def restoring(self) -> list[Experiment]:
        """Return the experiments that closed the gap."""
        return [experiment for name, experiment in self.experiments.items() if self.outcome(name) is Outcome.RESTORES]

    @property
    def cells(self) -> Mapping[frozenset[Gemm], Shown]:
        """Results by the products in BF16, of all valid runs without other changes."""
        cells = ((self.experiments[name].trial.cell, shown) for name, shown in self.shown.items())
        return {cell: shown for cell, shown in cells if cell is not None and shown.gate.is_valid}


def measure(plan: Fp8Plan, runs: Sequence[Run], baseline: Curve | None) -> Measured:
    """Compare every valid run with BF16, and the remaining gap with the candidate's gap.

    Args:
        plan: The plan as written.
        runs: All experiments of the plan, with or without a log.
        baseline: The loss of the old BF16 run, or None if its log no longer exists.
    """
    by_id = {run.experiment.trial.id: run for run in runs}
    reference = None
    if REFERENCE in by_id and _gate(by_id[REFERENCE], None).is_valid:
        reference = by_id[REFERENCE].curve
    # B never reached the step of the candidate's last checkpoint, but the old baseline did.
    against = {name: baseline if run.experiment.trial.from_last else reference for name, run in by_id.items()}
    against[REFERENCE] = None
    gates = {name: _gate(run, against[name]) for name, run in by_id.items()}
    groups = _twins(by_id, gates)
    for trials in groups:
        for trial in trials:
            if not _keeps_arithmetic(trial):
                other = next(peer.id for peer in trials if peer != trial)
                why = f"its losses equal those of {other} to the last digit: it is the same log, or nothing was changed"
                gates[trial.id] = replace(gates[trial.id], is_valid=False, reason=why)
    stretches: dict[str, Stretch] = {}
    for name, run in by_id.items():
        base = against[name]
        if base is not None and run.curve is not None and gates[name].is_valid:
            distance = stretch(base, run.curve, run.experiment.window)
            if distance is not None:
                stretches[name] = distance
    floor = limit = math.inf
    if REGROUPED in stretches:
        floor = floor_of(stretches[REGROUPED].gap)
        if UNCHANGED in stretches:
            limit = limit_of(floor, plan.suspicion.tolerance or 0.0, stretches[UNCHANGED].gap.half)
    alike = [[trial.id for trial in trials if _keeps_arithmetic(trial)] for trials in groups]
    measured = Measured(
        plan=plan,
        experiments={name: run.experiment for name, run in by_id.items()},
        shown={},
        baseline=None if baseline is None or reference is None else stretch(baseline, reference, plan.window),
        stretches=stretches,
        floor=floor,
        limit=limit,
        alike=[names for names in alike if len(names) > 1],
    )
    shown = {name: _result_of(measured, run.experiment.trial, gates[name]) for name, run in by_id.items()}
    return replace(measured, shown=shown)


def _gate(run: Run, against: Curve | None) -> Gate:
    return gate(run.experiment, run.curve, against, run.as_planned, window=run.experiment.window)


def _twins(runs: Mapping[str, Run], gates: Mapping[str, Gate]) -> list[list[Trial]]:
    """Return groups of valid experiments with equal losses to the last digit. The gate reports those equal to B."""
    groups: dict[tuple[tuple[Step, ...], tuple[float, ...]], list[Trial]] = {}
    for name, run in runs.items():
        if run.curve is not None and gates[name].is_valid:
            within = inside(run.curve, run.experiment.window)
            losses = (run.curve.steps[within.start : within.stop], run.curve.losses[within.start : within.stop])
            groups.setdefault(losses, []).append(run.experiment.trial)
    return [trials for trials in groups.values() if len(trials) > 1]


def _keeps_arithmetic(trial: Trial) -> bool:
    """Return whether an experiment keeps the arithmetic. With a deterministic trainer, such runs are equal."""
    return not trial.products.changed and trial.recipe is None


def _result_of(measured: Measured, trial: Trial, passed: Gate) -> Shown:
    part, unchanged = measured.stretches.get(trial.id), measured.stretches.get(UNCHANGED)
    result = Shown(id=trial.id, gate=passed, gap=None if part is None else part.gap)
    if not passed.is_valid:
        return result
    if trial.id in {REFERENCE, REGROUPED, UNCHANGED, REPEATED}:
        return replace(result, outcome=Outcome.REFERENCE)
    if part is None or unchanged is None or math.isinf(measured.limit):
        return result
    if trial.from_last:
        how, further = recovery(part, measured.limit)
        gap = measured.plan.suspicion.gap
        closed = 1 - part.gap.mean / gap if gap else None
        share = "" if closed is None else f"{closed:.0%} of the gap is closed"
        forecast = "" if further is None else f"; at this rate the rest needs {further:.0f} steps"
        return replace(result, outcome=how, recovered=closed, note=f"{share}{forecast}" or None)
    bounds = recovered(unchanged, part)
    if bounds is None:
        why = f"its log and that of {UNCHANGED} have no step of the window in common"
        return replace(result, gate=replace(passed, is_valid=False, reason=why), gap=None)
    share_closed, low, high = bounds
    how = outcome(part.gap.mean, bounds, measured.limit)
    return replace(result, recovered=share_closed, recovered_low=low, recovered_high=high, outcome=how)
