"""Plans of experiments in FP8, and losses that a run of each might have logged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from random import Random

from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Curve, CurveClass, FloorFrom, Onset
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.plan import (
    AsPlanned,
    Change,
    Evidence,
    Experiment,
    Fp8Plan,
    StartPoint,
    Suspicion,
    Trial,
    window,
)
from ckpttool.fp8.rules.experiments import Known, first_round
from ckpttool.fp8.rules.measure import Run

START = Step(100)
STEPS = 600
LAST = Step(1000)
"""Of the candidate."""
EVERY = 10
"""Steps between two lines of a log."""

WHOLE = 0.6456
TOY = {
    "B": 0.0,
    "E0": 0.00007,
    "C": WHOLE,
    "F": 0.62,
    "E2": 0.267,
    "E3": 0.0058,
    "E4f": 0.5837,
    "E4d": 0.5219,
    "E4w": 0.6713,
    "E4fd": 0.4763,
    "E4fw": 0.6481,
    "E4dw": 0.0071,
    "E5": 0.0008,
}
"""Distance to BF16 of each experiment of a real small training in which either backward product does all the damage."""


@cache
def bf16_loss(step: int) -> float:
    """Return what BF16 shows: a falling curve with the noise of its batches."""
    return 2.5 + 1.5 * math.exp(-step / 300) + Random(step).gauss(0, 0.04)  # noqa: S311  noise


def curve(steps: Iterable[int], gap: float = 0.0, *, own: int = 0, wander: float = 0.0005, rate: float = 3e-3) -> Curve:
    """Return what a run shows that lies so far from BF16, with a little noise of its own."""
    places = tuple(Step(step) for step in steps)
    noise = Random(own)  # noqa: S311  the same in every run
    return Curve(
        places=places,
        steps=places,
        losses=tuple(bf16_loss(step) + gap + noise.gauss(0, wander) for step in places),
        norms=(None,) * len(places),
        rates=(rate,) * len(places),
    )


def known(kind: CurveClass = CurveClass.STEP, **more: object) -> Known:
    """Return what a plan goes by."""
    return Known(kind=kind, recipe=Recipe.DELAYED, layers=tuple(range(1, 9)), **more)  # type: ignore[arg-type]


def experiment(trial: Trial) -> Experiment:
    """Return a trial that a framework can express."""
    first = LAST if trial.from_last else START
    return Experiment(
        trial=trial,
        change=Change(),
        reason=None,
        first_step=first,
        last_step=Step(first + STEPS),
        device_hours=None,
    )


def plan(trials: Iterable[Trial] | None = None, *, number: int = 1, kind: CurveClass = CurveClass.STEP) -> Fp8Plan:
    """Return a plan of these trials; of the first round, where none is given."""
    found = first_round(known(kind)) if trials is None else tuple(trials)
    return Fp8Plan(
        round=number,
        framework="some",
        framework_version=None,
        engine_version=None,
        recipe=Recipe.DELAYED,
        suspicion=Suspicion(
            kind=kind,
            gap=WHOLE,
            relative_gap=0.2,
            limit=0.0066,
            tolerance=0.0066,
            floor_from=FloorFrom.REPEAT,
            onset=Onset(step=Step(200), not_before=Step(200), not_after=Step(220)),
        ),
        start=StartPoint(name="20_2", step=START, path="output", evidence=Evidence.RESOLVED, has_history=True),
        horizon=STEPS,
        window=window(START, STEPS),
        limit=0.0066,
        baseline=("baseline.log",),
        candidate=("candidate.log",),
        columns=None,
        experiments=tuple(experiment(trial) for trial in found),
        extras=("sequence parallel", "fp8 attention"),
        layers=tuple(range(1, 9)),
        output="out",
    )


def run(of: Experiment, gap: float | None, told: AsPlanned = AsPlanned.YES, reason: str | None = None) -> Run:
    """Return an experiment with a log of this distance to BF16; None: with none."""
    steps = range(of.first_step + EVERY, of.last_step + 1, EVERY)
    own = 0 if of.trial.id == "B" else sum(map(ord, of.trial.id))
    wander = 0.0 if of.trial.id == "B" else 0.0005
    return Run(
        experiment=of,
        curve=None if gap is None else curve(steps, gap, own=own, wander=wander),
        as_planned=(told, reason),
    )


def runs(of: Fp8Plan, gaps: Mapping[str, float | None] = TOY) -> list[Run]:
    """Return all experiments of a plan, each with a log of its distance to BF16, or with none."""
    return [run(each, gaps.get(each.trial.id)) for each in of.experiments]


def baseline() -> Curve:
    """Return the old BF16 run."""
    return curve(range(EVERY, LAST + STEPS + 1, EVERY), own=99)
