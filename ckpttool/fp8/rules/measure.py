"""What each experiment showed: whether it counts, how far it is from BF16, and what share of the gap it closes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Curve
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm
from ckpttool.fp8.model.plan import (
    EXTRAS,
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
from ckpttool.fp8.rules.horizon import window
from ckpttool.fp8.rules.shares import Stretch, floor_of, limit, outcome, recovered, recovery, stretch

Cell = frozenset[Gemm]
"""The products in BF16 of an experiment that changes nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An experiment and what its logs show."""

    experiment: Experiment
    curve: Curve | None
    """Its loss by step; None without a log."""
    as_planned: tuple[AsPlanned, str | None]
    """What the logs say of its arithmetic, and what is wrong or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all rows of the table go by."""

    plan: Fp8Plan
    runs: tuple[Run, ...]
    shown: tuple[Shown, ...]
    baseline: Stretch | None
    """From the old baseline to B, in the window."""
    stretches: Mapping[str, Stretch]
    """By experiment: of those that count, from BF16 to it."""
    unchanged: Stretch | None
    floor: float | None
    limit: float | None
    alike: tuple[tuple[str, ...], ...] = ()
    """Experiments of one arithmetic that count, though their losses are the same to the last digit."""

    def of(self, name: str) -> Shown | None:
        """Return what an experiment showed; None where it was not planned."""
        return next((result for result in self.shown if result.id == name), None)

    def outcome(self, name: str) -> Outcome | None:
        """Return what it did to the gap; None where it counts for nothing."""
        result = self.of(name)
        return None if result is None else result.outcome

    @property
    def cells(self) -> Mapping[Cell, Shown]:
        """Of all that count and change nothing but which products are in BF16."""
        pairs = zip(self.runs, self.shown, strict=True)
        return {
            cell: shown
            for run, shown in pairs
            if shown.gate.is_valid and (cell := cell_of(run.experiment.trial)) is not None
        }


def cell_of(trial: Trial) -> Cell | None:
    """Return which products are in BF16, where nothing else is changed."""
    plain = (
        trial.layers is None
        and trial.operand is None
        and trial.recipe is None
        and not (trial.is_regrouped or trial.drops_history or trial.without or trial.from_last)
    )
    kinds = {trial.products.of(gemm) for gemm in Gemm}
    if not plain or not kinds <= {Arithmetic.FP8, Arithmetic.BF16} or trial.id in {EXTRAS, REPEATED}:
        return None
    return trial.products.changed


def measure(plan: Fp8Plan, runs: Sequence[Run], baseline: Curve | None) -> Measured:
    """Hold every run that counts against BF16, and what closes the gap against the candidate."""
    reference = next(
        (run.curve for run in runs if run.experiment.trial.id == REFERENCE and _gate(plan, run, None).is_valid), None
    )
    against = [_against(run.experiment.trial, baseline, reference) for run in runs]
    gates = [_gate(plan, run, reference) for run, reference in zip(runs, against, strict=True)]
    twins = _twins(plan, runs, gates)
    gates = [_no_twin(run.experiment.trial, passed, twins) for run, passed in zip(runs, gates, strict=True)]
    stretches = [
        None
        if reference is None or run.curve is None or not passed.is_valid
        else stretch(reference, run.curve, _window(plan, run.experiment))
        for run, reference, passed in zip(runs, against, gates, strict=True)
    ]
    by_id = {run.experiment.trial.id: own_stretch for run, own_stretch in zip(runs, stretches, strict=True)}
    regrouped, unchanged = by_id.get(REGROUPED), by_id.get(UNCHANGED)
    floor = None if regrouped is None else floor_of(regrouped.gap)
    tolerance = plan.suspicion.tolerance or 0.0
    counts = None if floor is None or unchanged is None else limit(floor, unchanged.gap, tolerance)
    thresholds = (unchanged, plan.suspicion.gap, counts)
    return Measured(
        plan=plan,
        runs=tuple(runs),
        shown=tuple(
            _shown(run.experiment.trial, passed, own_stretch, thresholds)
            for run, passed, own_stretch in zip(runs, gates, stretches, strict=True)
        ),
        baseline=None if baseline is None or reference is None else stretch(baseline, reference, plan.window),
        stretches={name: own_stretch for name, own_stretch in by_id.items() if own_stretch is not None},
        unchanged=unchanged,
        floor=floor,
        limit=counts,
        alike=tuple(tuple(trial.id for trial in trials) for trials in map(_unchanged_of, twins) if len(trials) > 1),
    )


def _twins(plan: Fp8Plan, runs: Sequence[Run], gates: Sequence[Gate]) -> list[list[Trial]]:
    """Return which experiments that count show the same losses to the last digit; B's own are told apart before."""
    groups: dict[tuple[tuple[Step, ...], tuple[float, ...]], list[Trial]] = {}
    for run, passed in zip(runs, gates, strict=True):
        if run.curve is not None and passed.is_valid:
            within = inside(run.curve, _window(plan, run.experiment))
            losses = (run.curve.steps[within.start : within.stop], run.curve.losses[within.start : within.stop])
            groups.setdefault(losses, []).append(run.experiment.trial)
    return [trials for trials in groups.values() if len(trials) > 1]


def _unchanged_of(trials: Sequence[Trial]) -> list[Trial]:
    """Return those that change no arithmetic: in a trainer that repeats itself exactly they may be the same."""
    return [trial for trial in trials if not trial.products.changed and trial.recipe is None]


def _no_twin(trial: Trial, passed: Gate, twins: Sequence[Sequence[Trial]]) -> Gate:
    """Refuse a run in another arithmetic whose losses another one shows, too: one of the two logs is not its own."""
    duplicates = [duplicate.id for trials in twins if trial in trials for duplicate in trials if duplicate != trial]
    if not duplicates or _unchanged_of([trial]):
        return passed
    reason = f"its losses are those of {duplicates[0]} to the last digit: it is the same log, or nothing was changed"
    return replace(passed, is_valid=False, reason=reason)


def _against(trial: Trial, baseline: Curve | None, reference: Curve | None) -> Curve | None:
    """Return what a run is held against: where the candidate's last checkpoint lies B never was, but the baseline."""
    return None if trial.id == REFERENCE else baseline if trial.from_last else reference


def _window(plan: Fp8Plan, experiment: Experiment) -> tuple[Step, Step]:
    return window(experiment.first_step, experiment.steps) if experiment.trial.from_last else plan.window


def _gate(plan: Fp8Plan, run: Run, against: Curve | None) -> Gate:
    return gate(run.experiment, run.curve, against, run.as_planned, window=_window(plan, run.experiment))


def _shown(
    trial: Trial, passed: Gate, part: Stretch | None, reference: tuple[Stretch | None, float | None, float | None]
) -> Shown:
    """Put together what an experiment showed; `reference` is what C did, its gap in the comparison, and what counts."""
    unchanged, gap, counts = reference
    result = Shown(id=trial.id, gate=passed, gap=None if part is None else part.gap)
    if not passed.is_valid:
        return result
    if trial.id in {REFERENCE, REGROUPED, UNCHANGED, REPEATED}:
        return replace(result, outcome=Outcome.REFERENCE)
    if part is None or unchanged is None or counts is None:
        return result
    return _last(result, part, gap, counts) if trial.from_last else _closed(result, part, unchanged, counts)


def _closed(result: Shown, part: Stretch, unchanged: Stretch, counts: float) -> Shown:
    share = recovered(unchanged, part)
    if share is None:
        reason = f"no step of the window is in its log and in that of {UNCHANGED}"
        return replace(result, gate=replace(result.gate, is_valid=False, reason=reason), gap=None)
    how = outcome(part.gap.mean, share, counts)
    return replace(result, recovered=share[0], recovered_low=share[1], recovered_high=share[2], outcome=how)


def _last(result: Shown, part: Stretch, gap: float | None, counts: float) -> Shown:
    how, further = recovery(part, counts)
    closed = None if not gap else 1 - part.gap.mean / gap
    share = "" if closed is None else f"{closed:.0%} of the gap is closed"
    forecast = "" if further is None else f"; at this rate the rest takes {further:.0f} steps"
    return replace(result, outcome=how, recovered=closed, note=f"{share}{forecast}" or None)
