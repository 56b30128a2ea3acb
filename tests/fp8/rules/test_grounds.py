"""Whether anything can be learned by experiments, and from where they begin."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.finding import unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.curves import Comparison, CurveClass, Onset, PairedBy, Terms
from ckpttool.fp8.rules.compare import compare
from ckpttool.fp8.rules.grounds import (
    LastStart,
    last_judged,
    last_start,
    nothing_to_learn,
    start_before,
    suspicion_of,
)
from tests.fp8.rules.curves import Runs, curve, stepped
from tests.support.fp8_runs import START, STEPS, plan

RUNS = Runs(3, steps=400, wander=0.002)
WORSE = compare(curve(RUNS.run()), curve(stepped(RUNS.run(), by=0.06, since=240)), [curve(RUNS.run())], terms=Terms())
SHORT = compare(curve([1.0] * 9), curve([1.0] * 9), terms=Terms())
ONSET = Onset(step=Step(240), not_before=Step(230), not_after=Step(250))


def test_a_gap_that_began_somewhere_can_be_explained() -> None:
    assert WORSE.kind is CurveClass.STEP
    assert nothing_to_learn(WORSE) is None
    assert nothing_to_learn(replace(WORSE, kind=CurveClass.INCONCLUSIVE, onset=None)) is None
    suspicion = suspicion_of(WORSE)
    assert (suspicion.kind, suspicion.onset, suspicion.limit) == (CurveClass.STEP, WORSE.onset, WORSE.limit)
    assert suspicion_of(SHORT).gap is None


@pytest.mark.parametrize(
    ("comparison", "why"),
    [
        (replace(WORSE, kind=CurveClass.MATCH), "no gap to explain"),
        (replace(WORSE, kind=CurveClass.TRANSIENT), "recovered on its own"),
        (replace(WORSE, findings=(unknown(Fp8Code.FP8_LR_DIFFERS, "other rates"),)), "cannot be compared: other rates"),
        (SHORT, "9 pairs of values are not enough"),
        (replace(WORSE, by=PairedBy.SAMPLES), "different batch sizes"),
        (replace(WORSE, onset=None), "the step at which"),
    ],
)
def test_what_cannot_be_explained_is_told(comparison: Comparison, why: str) -> None:
    assert why in (nothing_to_learn(comparison) or "")


def test_experiments_begin_well_before_the_gap() -> None:
    late = replace(WORSE, onset=ONSET)
    assert start_before(late, None) == 130
    assert start_before(late, Step(50)) == 130
    early = replace(late, kind=CurveClass.EARLY)
    assert (start_before(early, None), start_before(early, Step(50))) == (230, 50)


def test_without_a_gap_the_last_fifth_is_repeated() -> None:
    assert start_before(replace(WORSE, kind=CurveClass.INCONCLUSIVE, onset=None), None) == 200
    assert start_before(replace(SHORT, last=None, first=None), None) == 0


GOOD = {Step(200): "out", Step(500): "out", Step(900): "out"}


class TestLastStart:
    """BF16 on weights of the candidate is held against the old baseline, which must have gone on so far."""

    def test_it_is_the_newest_that_the_baseline_outlasts(self) -> None:
        assert last_start(plan(), Step(1200), GOOD) == LastStart(step=Step(500), path="out", note=None)
        assert last_start(plan(), Step(900 + STEPS), GOOD) == LastStart(step=Step(900), path="out", note=None)

    def test_else_it_is_the_newest_with_what_must_be_done(self) -> None:
        silent = "there is no log of the baseline"
        for ends, shown in ((Step(1000), "the baseline's log ends at step 1000"), (None, silent)):
            note = f"E2 starts from step 900, but {shown}: it can be judged once that run has reached step 1500"
            assert last_start(plan(), ends, GOOD) == LastStart(step=Step(900), path="out", note=note)

    def test_weights_from_before_the_gap_tell_nothing(self) -> None:
        why = "the candidate has no good checkpoint after step {}, when the gap existed"
        early = {Step(200): "out"}
        assert last_start(plan(), Step(5000), early) == why.format(220)
        of = plan()
        open_end = replace(of, suspicion=replace(of.suspicion, onset=None))
        assert last_start(open_end, Step(5000), {START: "out"}) == why.format(START)
        assert isinstance(last_start(open_end, Step(5000), early), LastStart)

    def test_a_baseline_that_is_shorter_than_a_run_judges_none(self) -> None:
        assert [last_judged(plan(), ends) for ends in (None, Step(STEPS - 1), Step(STEPS))] == [None, None, 0]
