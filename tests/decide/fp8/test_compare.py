"""Each class of curves, and its healthy neighbour."""

from __future__ import annotations

import pytest

from ckpttool.decide.fp8.compare import compare
from ckpttool.domain.finding import Code
from ckpttool.domain.fp8_curves import Comparison, CurveClass, CurveShape, Effect, FloorFrom, Terms
from tests.decide.fp8.curves import ONSET, Runs, curve, drifting, stepped


def compared(runs: Runs, candidate: list[float], *, repeats: int = 1, terms: Terms | None = None) -> Comparison:
    """Hold a candidate against another run of the same kind."""
    others = [curve(runs.run()) for _ in range(repeats)]
    return compare(curve(runs.run()), curve(candidate), others, terms=terms or Terms())


def test_two_runs_of_one_kind_match() -> None:
    runs = Runs(1)
    answer = compared(runs, runs.run())
    assert (answer.kind, answer.matters, answer.onset, answer.shape) == (CurveClass.MATCH, False, None, None)
    assert answer.floor is not None
    assert answer.floor.source is FloorFrom.REPEAT
    assert answer.pairing is not None
    assert answer.pairing > 0.9


def test_worse_from_the_first_step_is_early() -> None:
    runs = Runs(2)
    assert compared(runs, stepped(runs.run(), since=0)).kind is CurveClass.EARLY


def test_worse_by_as_much_since_a_step_is_a_step_and_says_since_when() -> None:
    runs = Runs(3, wander=0.002)
    answer = compared(runs, stepped(runs.run()))
    assert (answer.kind, answer.shape, answer.matters) == (CurveClass.STEP, CurveShape.STEP, True)
    assert answer.onset is not None
    assert answer.onset.not_before <= ONSET <= answer.onset.not_after


def test_worse_and_worse_since_a_step_is_a_drift() -> None:
    runs = Runs(4, wander=0.002)
    answer = compared(runs, drifting(runs.run()))
    assert (answer.kind, answer.shape) == (CurveClass.DRIFT, CurveShape.DRIFT)


def test_a_loss_that_rises_and_stays_has_diverged() -> None:
    runs = Runs(5)
    assert compared(runs, drifting(runs.run(), by=1.5)).kind is CurveClass.DIVERGED


def test_a_loss_that_is_no_number_at_the_end_has_diverged_however_short_the_log() -> None:
    runs = Runs(6, steps=150)
    assert compared(runs, [*runs.run()[:149], float("nan")]).kind is CurveClass.DIVERGED
    assert compared(runs, runs.run()).kind is CurveClass.INCONCLUSIVE


@pytest.mark.parametrize("kind", ["same", "worse"])
def test_one_baseline_never_says_that_there_is_an_effect(kind: str) -> None:
    runs = Runs(7)
    run = runs.run()
    answer = compared(runs, run if kind == "same" else stepped(run, since=0), repeats=0)
    assert answer.effect is Effect.UNKNOWN
    assert answer.floor is not None
    assert answer.floor.source is FloorFrom.SAMPLING


def test_another_learning_rate_is_no_comparison() -> None:
    runs = Runs(8)
    one, two = runs.run(), runs.run()
    answer = compare(curve(one, rate=1e-3), curve(two, rate=1.02e-3), terms=Terms())
    assert (answer.kind, answer.matters) == (CurveClass.INCONCLUSIVE, None)
    assert [finding.code for finding in answer.findings] == [Code.FP8_LR_DIFFERS]
    assert compare(curve(one, rate=1e-3), curve(two, rate=1.005e-3), terms=Terms()).findings == ()
