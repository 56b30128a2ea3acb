"""Each class of curves from a seed, beside the neighbour that is not of it, and what changes no answer."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ckpttool.core.domain.units import Step
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.curves import (
    Comparison,
    CurveClass,
    CurveMetric,
    CurveShape,
    Effect,
    FloorFrom,
    Terms,
    Tolerance,
)
from ckpttool.fp8.rules.compare import compare
from tests.fp8.rules.curves import ONSET, Runs, curve, drifting, stepped

ABSOLUTE = Terms(tolerance=Tolerance(value=0.005, relative=False))


def compared(
    runs: Runs, candidate: list[float], *, repeats: int = 1, terms: Terms | None = None, other_data: bool = False
) -> Comparison:
    """Hold a candidate against another run of the same kind."""
    others = [curve(runs.run(other_data=other_data)) for _ in range(repeats)]
    return compare(curve(runs.run()), curve(candidate), others, terms=terms or Terms())


class TestClasses:
    @pytest.mark.sample(1)
    @pytest.mark.parametrize("seed", range(3))
    def test_two_runs_of_one_kind_match(self, seed: int) -> None:
        runs = Runs(seed)
        answer = compared(runs, runs.run())
        assert (answer.kind, answer.matters, answer.onset, answer.shape) == (CurveClass.MATCH, False, None, None)
        assert answer.floor is not None
        assert answer.floor.source is FloorFrom.REPEAT

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("seed", range(3))
    def test_worse_from_the_first_step_is_early_and_since_the_middle_is_not(self, seed: int) -> None:
        runs = Runs(seed, wander=0.002)
        assert compared(runs, stepped(runs.run(), since=0)).kind is CurveClass.EARLY
        answer = compared(runs, stepped(runs.run()))
        assert (answer.kind, answer.shape, answer.matters) == (CurveClass.STEP, CurveShape.STEP, True)
        assert answer.onset is not None
        assert answer.onset.not_before <= ONSET <= answer.onset.not_after

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("seed", range(3))
    def test_a_gap_that_grows_is_a_drift_and_one_that_stays_is_none(self, seed: int) -> None:
        runs = Runs(seed, wander=0.002)
        answer = compared(runs, drifting(runs.run()))
        assert (answer.kind, answer.shape) == (CurveClass.DRIFT, CurveShape.DRIFT)
        assert answer.onset is not None
        assert answer.onset.not_before - 100 <= ONSET <= answer.onset.not_after + 100

    def test_a_gap_of_which_nobody_can_tell_how_it_goes_on_is_late(self) -> None:
        runs = Runs(1, wander=0.004)
        answer = compared(runs, stepped(runs.run(), by=0.02, since=1500))
        assert (answer.kind, answer.shape) == (CurveClass.LATE, CurveShape.OPEN)

    def test_a_loss_that_rises_has_diverged_and_a_steep_gap_of_a_loss_that_falls_has_not(self) -> None:
        runs = Runs(5)
        assert compared(runs, drifting(runs.run(), by=1.5)).kind is CurveClass.DIVERGED
        assert compared(runs, drifting(runs.run(), by=0.06, since=200)).kind is not CurveClass.DIVERGED

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("nothing", [math.nan, 1e300, math.inf])
    def test_a_baseline_that_ends_in_nothing_is_no_reference_and_one_that_lost_a_few_values_is(
        self, nothing: float
    ) -> None:
        runs = Runs(6)
        broken, well = runs.run(), curve(runs.run())
        broken[300] = nothing
        notes = compare(curve(broken), well, (), terms=Terms()).notes
        assert not any("cannot be used for a comparison" in note for note in notes)
        broken[1500:] = [nothing] * 500
        for candidate in (well, curve(broken)):
            answer = compare(curve(broken), candidate, (), terms=Terms())
            assert (answer.kind, answer.matters) == (CurveClass.INCONCLUSIVE, None)
            assert "cannot be used for a comparison" in answer.notes[0]
        answer = compare(well, curve(broken), (), terms=Terms())
        assert (answer.kind, answer.matters) == (CurveClass.DIVERGED, True)

    def test_a_candidate_that_ends_in_nothing_soon_matters_though_too_little_is_in_common(self) -> None:
        answer = compare(curve([2.0] * 30), curve([2.0] * 29 + [math.nan]), (), terms=Terms())
        assert (answer.kind, answer.matters) == (CurveClass.DIVERGED, True)

    def test_a_log_that_shows_no_loss_is_named(self) -> None:
        assert compare(curve([]), curve([2.0]), (), terms=Terms()).notes == (
            "0 pairs of values are not enough: 200 are needed",
            "the baseline's log has none",
        )

    def test_a_gap_of_losses_below_zero_has_the_sign_of_its_share(self) -> None:
        runs = Runs(7, wander=0.002)
        lower = [loss - 20 for loss in runs.run()]
        answer = compare(curve([loss - 20 for loss in runs.run()]), curve(stepped(lower)), (), terms=Terms())
        assert answer.gap is not None
        assert answer.relative_gap is not None
        assert answer.gap.mean > 0 < answer.relative_gap

    def test_ten_losses_that_are_no_numbers_are_a_divergence_and_nine_are_a_spike(self) -> None:
        runs = Runs(6)
        broken = runs.run()
        for step in range(100, 1900, 200):
            broken[step] = math.nan
        assert compared(runs, broken).kind is CurveClass.SPIKES
        broken[150] = math.inf
        answer = compared(runs, broken)
        assert answer.kind is CurveClass.DIVERGED
        assert "not a number at 10 places" in answer.notes[0]

    def test_a_loss_that_is_no_number_at_the_end_has_diverged_however_short_the_log(self) -> None:
        runs = Runs(6, steps=150)
        assert compared(runs, [*runs.run()[:149], math.nan]).kind is CurveClass.DIVERGED
        assert compared(runs, runs.run()).kind is CurveClass.INCONCLUSIVE

    def test_a_spike_that_passes_is_one_and_a_longer_one_than_the_baseline_ever_had_is_not_ordinary(self) -> None:
        runs = Runs(7, wander=0.002)
        candidate = runs.run()
        for length, kind in ((20, CurveClass.SPIKES), (90, CurveClass.TRANSIENT)):
            candidate[1500 : 1500 + length] = [4.0] * length
            assert compared(runs, candidate).kind is kind

    def test_a_spike_of_the_baseline_alone_is_a_match(self) -> None:
        runs = Runs(7, wander=0.002)
        baseline = runs.run()
        baseline[1500:1520] = [4.0] * 20
        answer = compare(curve(baseline), curve(runs.run()), [curve(runs.run())], terms=Terms())
        assert (answer.kind, len(answer.spikes)) == (CurveClass.MATCH, 1)

    def test_a_gap_that_comes_back_by_itself_is_transient(self) -> None:
        runs = Runs(8, wander=0.002)
        candidate = [loss + 0.06 * (800 <= step < 1000) for step, loss in enumerate(runs.run())]
        answer = compared(runs, candidate)
        assert (answer.kind, answer.matters) == (CurveClass.TRANSIENT, False)

    def test_a_spike_at_the_very_end_is_told(self) -> None:
        runs = Runs(9)
        answer = compared(runs, stepped(runs.run(), by=2.0, since=1970))
        assert answer.kind is CurveClass.SPIKES
        assert any("has not ended yet" in note for note in answer.notes)


class TestWhatCannotBeTold:
    @pytest.mark.parametrize("worse", [False, True])
    def test_one_baseline_never_says_that_there_is_an_effect(self, worse: bool) -> None:
        runs = Runs(7)
        run = runs.run()
        answer = compared(runs, stepped(run, since=0) if worse else run, repeats=0)
        assert answer.effect is Effect.UNKNOWN
        assert answer.floor is not None
        assert answer.floor.source is FloorFrom.SAMPLING

    def test_between_the_tolerance_and_the_limit_one_baseline_does_not_tell(self) -> None:
        runs = Runs(10, wander=0.0005)
        run = stepped(runs.run(), by=0.01, since=0)
        answer = compared(runs, run, repeats=0)
        assert (answer.kind, answer.matters) == (CurveClass.INCONCLUSIVE, None)
        assert compared(runs, run, repeats=1).kind is CurveClass.EARLY

    def test_a_repeat_on_the_same_data_tells_of_an_effect_that_does_not_matter(self) -> None:
        runs = Runs(11, wander=0.0)
        answer = compared(runs, stepped(runs.run(), by=0.003, since=0))
        assert (answer.effect, answer.matters, answer.kind) == (Effect.YES, False, CurveClass.MATCH)
        assert compared(runs, runs.run()).effect is not Effect.YES

    def test_a_repeat_on_other_data_tells_what_matters_and_nothing_of_an_effect(self) -> None:
        runs = Runs(12)
        answer = compared(runs, stepped(runs.run(), by=0.1, since=0), other_data=True)
        assert (answer.effect, answer.matters) == (Effect.UNKNOWN, True)

    def test_a_candidate_on_other_data_is_told_so(self) -> None:
        runs = Runs(13)
        answer = compared(runs, runs.run(other_data=True))
        assert any("did not see the same data" in note for note in answer.notes)

    def test_199_pairs_are_too_few_and_200_are_enough(self) -> None:
        runs = Runs(14, steps=200)
        short = compared(runs, runs.run()[:199])
        assert (short.kind, short.pairs, short.gap, short.windows) == (CurveClass.INCONCLUSIVE, 199, None, ())
        assert compared(runs, runs.run()).gap is not None

    def test_logs_without_a_step_in_common_have_no_pair(self) -> None:
        runs = Runs(14, steps=300)
        answer = compare(curve(runs.run()), curve(runs.run(), first=1000), terms=Terms())
        nothing = compare(curve([]), curve([]), terms=Terms())
        assert (nothing.kind, nothing.pairs) == (CurveClass.INCONCLUSIVE, 0)
        assert (answer.kind, answer.pairs, answer.first, answer.last) == (CurveClass.INCONCLUSIVE, 0, None, None)

    def test_another_learning_rate_is_no_comparison(self) -> None:
        runs = Runs(8)
        one, two = runs.run(), runs.run()
        answer = compare(curve(one, rate=1e-3), curve(two, rate=1.02e-3), terms=Terms())
        assert (answer.kind, answer.matters) == (CurveClass.INCONCLUSIVE, None)
        assert [finding.code for finding in answer.findings] == [Fp8Code.FP8_LR_DIFFERS]
        assert compare(curve(one, rate=1e-3), curve(two, rate=1.005e-3), terms=Terms()).findings == ()

    def test_another_logging_interval_is_no_comparison_but_for_validations(self) -> None:
        runs = Runs(8)
        one, two = curve(runs.run()), curve(runs.run()[::5], every=5)
        (finding,) = compare(one, two, terms=Terms()).findings
        assert finding.code is Fp8Code.FP8_INTERVAL_DIFFERS
        assert compare(one, two, terms=Terms(metric=CurveMetric.VALIDATION)).findings == ()


class TestTerms:
    def test_a_gap_at_the_switch_is_early_and_one_before_it_is_said_not_to_be_its(self) -> None:
        runs = Runs(15, wander=0.002)
        candidate = stepped(runs.run())
        assert compared(runs, candidate, terms=Terms(switch_step=Step(1200))).kind is CurveClass.EARLY
        assert compared(runs, candidate, terms=Terms(switch_step=Step(600))).kind is CurveClass.STEP
        before = compared(runs, candidate, terms=Terms(switch_step=Step(1600)))
        assert before.kind is CurveClass.STEP
        assert any("begins before step 1600" in note for note in before.notes)

    def test_validation_losses_need_twelve_pairs_and_have_no_spikes(self) -> None:
        terms = Terms(metric=CurveMetric.VALIDATION)
        runs = Runs(16, steps=60, noise=0.0, wander=0.002)
        answer = compared(runs, stepped(runs.run(), since=0), terms=terms)
        assert (answer.kind, answer.pairing, answer.spikes) == (CurveClass.EARLY, None, ())
        few = Runs(16, steps=11, noise=0.0)
        assert compared(few, few.run(), terms=terms).kind is CurveClass.INCONCLUSIVE

    def test_one_log_given_twice_is_seen_and_is_no_repeat(self) -> None:
        runs = Runs(21, wander=0.002)
        base, worse, again = curve(runs.run()), curve(stepped(runs.run(), by=0.06)), curve(runs.run())
        honest = compare(base, worse, [again], terms=Terms())
        assert not any("to the last digit" in note for note in honest.notes)
        alone = compare(base, worse, terms=Terms())
        for repeat, of in ((base, "baseline"), (worse, "candidate")):
            answer = compare(base, worse, [repeat], terms=Terms())
            assert (answer.floor, answer.effect, answer.kind) == (alone.floor, alone.effect, alone.kind)
            assert f"repeat 1 equals the {of}'s losses to the last digit" in answer.notes[-1]
            both = compare(base, worse, [again, repeat], terms=Terms())
            assert (both.floor, both.limit) == (honest.floor, honest.limit)
        twice = compare(base, base, [again], terms=Terms())
        assert twice.kind is CurveClass.MATCH
        assert "was the same log given twice?" in twice.notes[-1]
        few = curve(runs.run()[:11])
        assert not any("last digit" in note for note in compare(few, few, terms=Terms()).notes)

    def test_a_very_long_log_is_averaged_and_answers_alike(self) -> None:
        runs = Runs(17, steps=20_401, wander=0.002)
        answer = compared(runs, stepped(runs.run(), since=12_401))
        assert (answer.kind, answer.pairs) == (CurveClass.STEP, 20_401)
        assert (answer.first, answer.last, answer.windows[-1].last) == (1, 20_401, 20_401)
        assert all(before.last < after.first for before, after in pairwise(answer.windows))
        assert "2 neighbours" in " ".join(answer.notes)
        assert answer.onset is not None
        assert answer.onset.not_before <= 12_401 <= answer.onset.not_after

    def test_norms_are_held_against_each_other_where_both_log_them(self) -> None:
        runs = Runs(18)
        one, two = curve(runs.run(), norm=1.0), curve(runs.run(), norm=1.5)
        answer = compare(one, two, terms=Terms())
        assert answer.norm_gap is not None
        assert math.exp(answer.norm_gap.mean) == pytest.approx(1.5)
        assert compare(one, curve(runs.run()), terms=Terms()).norm_gap is None


class TestWhatChangesNothing:
    @pytest.mark.sample(1)
    @pytest.mark.parametrize("kind", ["step", "match", "early", "drift"])
    def test_both_curves_shifted_by_a_constant(self, kind: str) -> None:
        one, two, repeat = triple(kind)
        answer = compare(curve(one), curve(two), [curve(repeat)], terms=ABSOLUTE)
        shifted = [curve([loss + 3.0 for loss in run]) for run in (one, two, repeat)]
        other = compare(shifted[0], shifted[1], [shifted[2]], terms=ABSOLUTE)
        assert (other.kind, other.onset, other.spikes) == (answer.kind, answer.onset, answer.spikes)
        assert answer.gap is not None
        assert other.gap is not None
        assert other.gap.mean == pytest.approx(answer.gap.mean)
        assert other.limit == pytest.approx(answer.limit)
        assert other.relative_gap != pytest.approx(answer.relative_gap)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("kind", ["step", "match", "early", "drift"])
    def test_both_curves_swapped_but_for_the_sign(self, kind: str) -> None:
        one, two, _ = triple(kind)
        answer, other = (compare(a, b, terms=ABSOLUTE) for a, b in ((curve(one), curve(two)), (curve(two), curve(one))))
        assert (other.kind, other.onset) == (answer.kind, answer.onset)
        assert answer.gap is not None
        assert other.gap is not None
        assert other.gap.mean == pytest.approx(-answer.gap.mean)
        assert (other.gap.low, other.gap.high) == pytest.approx((-answer.gap.high, -answer.gap.low), abs=2e-4)

    def test_the_seed_moves_the_interval_and_no_class(self) -> None:
        one, two, repeat = triple("step")
        answers = [compare(curve(one), curve(two), [curve(repeat)], terms=Terms(seed=seed)) for seed in (1, 1, 2)]
        assert answers[0] == answers[1]
        assert answers[0].gap != answers[2].gap
        assert {answer.kind for answer in answers} == {CurveClass.STEP}


def triple(kind: str) -> tuple[list[float], list[float], list[float]]:
    """Return a baseline, a candidate and a repeat."""
    runs = Runs(19, wander=0.002)
    one, two, repeat = runs.run(), runs.run(), runs.run()
    changed = {"match": two, "early": stepped(two, since=0), "step": stepped(two), "drift": drifting(two)}
    return one, changed[kind], repeat
