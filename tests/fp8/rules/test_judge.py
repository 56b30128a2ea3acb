"""The verdict: every row of its table, and what lies just beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from random import Random

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.fp8.model.curves import CurveClass
from ckpttool.fp8.model.fp8 import Gemm, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Evidence, Fp8Plan, Fp8Verdict, Outcome, VerdictKind
from ckpttool.fp8.rules.experiments import next_round
from ckpttool.fp8.rules.judge import judge
from tests.support.fp8_runs import TOY, WHOLE, baseline, curve, experiment, known, plan, runs

RECIPES = (Recipe.TENSORWISE, Recipe.BLOCKWISE, Recipe.MXFP8)


def verdict(of: Fp8Plan, gaps: dict[str, float | None] | None = None) -> Fp8Verdict:
    return judge(of, runs(of, TOY if gaps is None else {**TOY, **gaps}), baseline(), recipes=RECIPES)


def further(of: Fp8Plan, found: Fp8Verdict) -> Fp8Plan:
    """Plan the next round."""
    number = of.round + 1
    trials = next_round(number, known(), found, [each.trial for each in of.experiments])
    return replace(of, round=number, experiments=(*of.experiments, *map(experiment, trials)))


@cache
def first_verdict() -> Fp8Verdict:
    """Judge the toy's first round."""
    return verdict(plan())


@cache
def second_round() -> Fp8Plan:
    """Plan what follows from it."""
    return further(plan(), first_verdict())


@cache
def second_verdict() -> Fp8Verdict:
    """Judge that, too."""
    return verdict(second_round())


def shaped(of: Fp8Plan, gaps: Mapping[str, Callable[[float], float]]) -> Fp8Verdict:
    """Judge runs whose distance to BF16 changes with the part of their steps that is done."""
    done = []
    for each in runs(of):
        gap, straight = gaps.get(each.experiment.trial.id), each.curve
        if gap is not None and straight is not None:
            flat = curve(straight.steps, own=len(each.experiment.trial.id))
            parts = [(step - each.experiment.first_step) / each.experiment.steps for step in flat.steps]
            losses = tuple(loss + gap(part) for loss, part in zip(flat.losses, parts, strict=True))
            each = replace(each, curve=replace(flat, losses=losses))  # noqa: PLW2901  the shaped one
        done.append(each)
    return judge(of, done, baseline(), recipes=RECIPES)


def shown(found: Fp8Verdict) -> dict[str, Outcome | None]:
    return {each.id: each.outcome for each in found.experiments}


class TestToy:
    """Gaps of a real training: either backward product alone does the whole damage."""

    def test_one_at_a_time_finds_nobody(self) -> None:
        found = first_verdict()
        assert (found.kind, found.culprits, found.cure, found.shares) == (VerdictKind.UNDECIDED, (), None, None)
        assert [shown(found)[name] for name in ("E4f", "E4d", "E4w", "E3")] == [
            Outcome.NO, Outcome.NO, Outcome.NO, Outcome.RESTORES,
        ]  # fmt: skip
        closed = {each.id: each.recovered for each in found.experiments}
        assert [round(closed[name] or 0, 2) for name in ("E4f", "E4w", "E4d")] == [0.10, -0.04, 0.19]
        assert found.next is not None
        assert (found.next.round, found.next.ids[:4]) == (2, ("E1", "E4fd", "E4fw", "E4dw"))

    def test_pairs_name_both_backward_products(self) -> None:
        found = second_verdict()
        assert (found.kind, found.culprits) == (VerdictKind.CULPRIT, (Gemm.DGRAD, Gemm.WGRAD))
        assert found.explains == pytest.approx(0.989, abs=0.001)
        assert found.cure is not None
        assert (found.cure.id, found.cure.restores, found.cure.keeps_fp8) == ("E4dw", True, False)
        assert found.shares is not None
        assert [gemm for gemm, _ in found.shares] == list(Gemm)
        assert [share for _, share in found.shares] == pytest.approx([0.0345, 0.3859, 0.2253], abs=0.001)

    def test_the_third_round_finds_the_cure_that_keeps_fp8(self) -> None:
        second = second_round()
        third = further(second, second_verdict())
        assert [each.trial.id for each in third.experiments if each.trial.round == 3] == [
            "E5", "E7q1", "E7q2", "E7q3", "E7q4", "E8-activation", "E8-weight", "E8-gradient",
        ]  # fmt: skip
        found = verdict(third, {"E8-gradient": 0.002, "E8-weight": 0.6, "E8-activation": 0.63, "E7q1": 0.5})
        assert found.cure is not None
        assert (found.cure.id, found.cure.restores, found.cure.keeps_fp8) == ("E5", True, True)
        assert [operand.value for operand in found.operands] == ["gradient"]
        assert found.layers is None

    def test_the_order_of_the_runs_does_not_matter(self) -> None:
        second = second_round()
        straight = second_verdict()
        mixed = list(second.experiments)
        Random(1).shuffle(mixed)  # noqa: S311  the same in every run
        other = verdict(replace(second, experiments=tuple(mixed)))
        assert (other.culprits, other.shares, other.cure) == (straight.culprits, straight.shares, straight.cure)

    def test_from_the_last_checkpoint_it_is_stuck_at_59_percent(self) -> None:
        found = first_verdict()
        assert shown(found)["E2"] is Outcome.STUCK
        assert any("stuck (59% of the gap is closed)" in note for note in found.notes)


class TestRows:
    @pytest.mark.parametrize("name", ["B", "E0", "C"])
    def test_without_one_of_the_three_nothing_can_be_said(self, name: str) -> None:
        found = verdict(plan(), {name: None})
        assert (found.kind, found.next is not None and found.next.ids) == (VerdictKind.UNDECIDED, (name,))

    def test_a_damaged_start_is_told_before_anybody_is_blamed(self) -> None:
        worse = {name: gap + 0.05 for name, gap in TOY.items()}
        assert verdict(plan(), {**worse}).kind is VerdictKind.DAMAGED_START
        near = {name: gap + 0.005 for name, gap in TOY.items()}
        assert verdict(plan(), {**near}).kind is VerdictKind.UNDECIDED

    def test_without_the_old_baseline_the_start_is_not_judged(self) -> None:
        of = plan()
        worse = {name: gap + 0.05 for name, gap in TOY.items()}
        assert judge(of, runs(of, worse), None, recipes=RECIPES).kind is VerdictKind.UNDECIDED

    def test_a_gap_that_does_not_come_back_is_looked_for_once_more(self) -> None:
        found = verdict(plan(), {"C": 0.004})
        assert found.kind is VerdictKind.NOT_REPRODUCED
        assert found.next is not None
        assert found.next.ids == ("C2",)
        again = further(plan(), found)
        assert verdict(again, {"C": 0.004}).kind is VerdictKind.NOT_REPRODUCED
        assert verdict(again, {"C": 0.004, "C2": 0.003}).kind is VerdictKind.INNOCENT
        assert verdict(again, {"C": 0.004, "C2": 0.6}).kind is VerdictKind.UNDECIDED

    def test_a_candidate_that_is_better_now_does_not_show_the_gap(self) -> None:
        assert verdict(plan(), {"C": -0.3}).kind is VerdictKind.NOT_REPRODUCED

    def test_a_checkpoint_without_history_has_cured_a_stale_scale_by_itself(self) -> None:
        of = plan()
        bare = replace(of, start=replace(of.start, has_history=False))
        found = verdict(bare, {"C": 0.004})
        assert (found.kind, found.cure is not None and found.cure.restores) == (VerdictKind.STALE_SCALE, True)
        assert verdict(replace(bare, recipe=Recipe.TENSORWISE), {"C": 0.004}).kind is VerdictKind.NOT_REPRODUCED

    def test_from_scratch_no_restart_has_dropped_a_history(self) -> None:
        of = plan()
        anew = replace(of, start=replace(of.start, evidence=Evidence.SCRATCH, has_history=False))
        assert verdict(anew, {"C": 0.004}).kind is VerdictKind.NOT_REPRODUCED

    @pytest.mark.parametrize("name", ["E0", "C"])
    def test_the_log_of_b_given_for_another_run_counts_for_nothing(self, name: str) -> None:
        of = plan()
        done = runs(of)
        same = [replace(each, curve=done[0].curve) if each.experiment.trial.id == name else each for each in done]
        found = judge(of, same, baseline(), recipes=RECIPES)
        assert (found.kind, found.because) == (VerdictKind.UNDECIDED, f"there is no answer without {name}")

    @pytest.mark.parametrize(("name", "other"), [("E4d", "C"), ("E4w", "E4f"), ("E3", "C")])
    def test_the_log_of_another_run_given_again_counts_for_nothing(self, name: str, other: str) -> None:
        of = plan()
        done = runs(of)
        curves = {each.experiment.trial.id: each.curve for each in done}
        twice = [replace(each, curve=curves[other]) if each.experiment.trial.id == name else each for each in done]
        found = judge(of, twice, baseline(), recipes=RECIPES)
        refused = {shown.id: shown.gate.reason for shown in found.experiments if not shown.gate.is_valid}
        assert (
            refused[name]
            == f"its losses equal those of {other} to the last digit: it is the same log, or nothing was changed"
        )
        assert refused.keys() == ({name} if other == "C" else {name, other})  # C is what it should be
        assert found.kind is VerdictKind.UNDECIDED

    def test_runs_of_one_arithmetic_may_be_alike_and_that_is_said(self) -> None:
        of = plan()
        done = runs(of)
        own = next(each.curve for each in done if each.experiment.trial.id == "C")
        twice = [replace(each, curve=own) if each.experiment.trial.id == "F" else each for each in done]
        found = judge(of, twice, baseline(), recipes=RECIPES)
        assert all(shown.gate.is_valid for shown in found.experiments)
        assert "the losses of C and F are the same to the last digit: was the same log given twice?" in found.notes
        assert not any("to the last digit" in note for note in first_verdict().notes)

    def test_a_gap_within_three_floors_is_too_weak(self) -> None:
        quiet = replace(plan(), suspicion=replace(plan().suspicion, tolerance=0.001))
        assert verdict(quiet, {"E0": 0.01, "C": 0.08}).kind is VerdictKind.WEAK
        assert verdict(quiet, {"E0": 0.01, "C": 0.1}).kind is not VerdictKind.WEAK

    def test_what_is_well_without_extras_is_software(self) -> None:
        of = plan(kind=CurveClass.EARLY)
        found = verdict(of, {"E1": 0.001})
        assert (found.kind, found.cure is not None and found.cure.id) == (VerdictKind.SOFTWARE, "E1")
        assert verdict(of, {"E1": 0.6}).kind is VerdictKind.UNDECIDED

    def test_what_is_well_without_its_history_has_a_stale_scale(self) -> None:
        found = verdict(plan(), {"F": 0.001})
        assert (found.kind, found.cure is not None and found.cure.id) == (VerdictKind.STALE_SCALE, "F")

    def test_where_a_current_scale_does_not_help_it_is_the_format(self) -> None:
        found = verdict(plan(), {"E3": 0.6})
        assert found.kind is VerdictKind.FORMAT
        assert found.cure is not None
        assert (found.cure.id, found.cure.restores) == ("E6-blockwise", None)
        part = verdict(plan(), {"E3": 0.3})
        assert (shown(part)["E3"], part.kind) == (Outcome.PART, VerdictKind.UNDECIDED)

    def test_a_format_that_one_product_cannot_bear_names_it(self) -> None:
        found = verdict(plan(), {"E3": 0.6, "E4d": 0.001})
        assert (found.kind, found.culprits) == (VerdictKind.FORMAT, (Gemm.DGRAD,))

    def test_a_product_without_which_all_is_well_is_the_culprit(self) -> None:
        found = verdict(plan(), {"E4d": 0.02})
        assert (found.kind, found.culprits) == (VerdictKind.CULPRIT, (Gemm.DGRAD,))
        assert found.next is not None
        assert found.next.ids[:2] == ("E5", "E6-tensorwise")
        assert verdict(plan(), {"E4d": 0.1}).culprits == ()

    def test_of_several_the_one_that_costs_least_is_named(self) -> None:
        assert verdict(plan(), {"E4f": 0.001, "E4w": 0.001, "E4d": 0.001}).culprits == (Gemm.WGRAD,)
        assert verdict(plan(), {"E4f": 0.001, "E4d": 0.001}).culprits == (Gemm.DGRAD,)

    def test_nobody_is_named_while_another_product_was_not_tried(self) -> None:
        found = verdict(plan(), {"E4f": None})
        assert (found.kind, found.next is not None and found.next.ids) == (VerdictKind.UNDECIDED, ("E4f",))
        second = second_round()
        assert verdict(second, {"E4w": None}).kind is VerdictKind.UNDECIDED

    def test_where_no_pair_helps_it_takes_all_three(self) -> None:
        second = second_round()
        found = verdict(second, {"E4dw": 0.6})
        assert (found.culprits, found.explains) == (tuple(Gemm), None)
        assert found.because.startswith(
            "all three products together are the cause: of the pairs, E4fd closes most, 26."
        )
        assert found.cure is not None
        assert (found.cure.id, found.cure.keeps_fp8) == ("B", False)

    def test_all_three_are_not_blamed_where_longer_runs_may_clear_one(self) -> None:
        second = second_round()
        steady = {"C": lambda _: WHOLE, "E4dw": lambda _: 0.26 * WHOLE}
        assert shaped(second, steady).culprits == tuple(Gemm)
        since_the_start = {"C": lambda part: WHOLE * part, "E4dw": lambda part: 0.26 * WHOLE * part}
        as_well = {"E4fd": lambda part: 0.7 * WHOLE * part, "E4fw": lambda part: WHOLE * part}
        assert shaped(second, {**since_the_start, **as_well}).culprits == tuple(Gemm)
        still_opens = {"C": lambda part: WHOLE * (2 * part - 0.9), "E4dw": lambda part: 0.26 * WHOLE * (2 * part - 0.9)}
        still_closes = {**steady, "E4dw": lambda part: WHOLE * (0.76 - 0.6 * part)}
        for shape in (still_opens, still_closes):
            found = shaped(second, shape)
            assert (found.kind, found.culprits, found.cure) == (VerdictKind.UNDECIDED, (), None)
            assert "and this share or the gap itself is still growing: the runs are too short to show" in found.because
            assert "plan longer runs in a new folder: --horizon 1200" in found.notes

    def test_all_three_are_not_blamed_where_a_pair_may_bring_the_loss_back(self) -> None:
        found = shaped(second_round(), {"E4dw": lambda part: 0.2 * WHOLE + (0.4 if int(20 * part) % 2 else -0.4)})
        assert (found.kind, found.culprits) == (VerdictKind.UNDECIDED, ())
        assert "E4dw closes " in found.because
        assert "of the gap, and possibly " in found.because

    def test_all_three_are_not_blamed_by_a_few_values(self) -> None:
        of = second_round()
        done = [
            replace(each, curve=curve(range(100 + 25, 701, 25), TOY[each.experiment.trial.id], own=place))
            if each.experiment.trial.id in TOY
            else each
            for place, each in enumerate(runs(of))
        ]
        done = [
            replace(each, curve=curve(range(125, 701, 25), 0.26 * WHOLE, own=77))
            if each.experiment.trial.id == "E4dw"
            else each
            for each in done
        ]
        found = judge(of, done, None, recipes=RECIPES)
        assert (found.kind, found.culprits) == (VerdictKind.UNDECIDED, ())

    def test_seven_of_eight_cells_tell_no_shares(self) -> None:
        second = second_round()
        found = verdict(second, {"E4fd": None})
        assert (found.culprits, found.shares) == ((Gemm.DGRAD, Gemm.WGRAD), None)
        assert verdict(second, {"E4dw": None}).culprits == ()

    def test_what_cannot_be_expressed_is_not_waited_for(self) -> None:
        second = second_round()
        only = tuple(
            each if each.trial.id in {"B", "E0", "C", "E4dw"} else replace(each, change=None, reason="not here")
            for each in second.experiments
        )
        gaps: dict[str, float | None] = dict.fromkeys(TOY)
        found = verdict(
            replace(second, experiments=only), {**gaps, "B": 0.0, "E0": 0.00007, "C": WHOLE, "E4dw": 0.0071}
        )
        assert (found.kind, found.culprits) == (VerdictKind.CULPRIT, (Gemm.DGRAD, Gemm.WGRAD))
        assert "which of them alone would be enough is unknown here: E4d, E4w" in found.notes

    def test_without_a_gap_to_explain_fp8_is_innocent_or_the_first_round_follows(self) -> None:
        of = plan(kind=CurveClass.INCONCLUSIVE)
        assert verdict(of, {"C": 0.001}).kind is VerdictKind.INNOCENT
        found = verdict(of)
        assert found.kind is VerdictKind.UNDECIDED
        assert found.next is not None
        assert found.next.ids[:3] == ("F", "E2", "E3")

    def test_what_cannot_be_set_against_the_candidate_counts_for_nothing(self) -> None:
        of = plan()
        done = runs(of)
        by_id = {each.experiment.trial.id: place for place, each in enumerate(done)}
        places = list(range(101, 701))
        done[by_id["B"]] = replace(done[0], curve=curve(places, wander=0.0))
        done[by_id["C"]] = replace(done[by_id["C"]], curve=curve(places[::2], WHOLE))
        done[by_id["E0"]] = replace(done[by_id["E0"]], curve=curve(places))
        done[by_id["E4d"]] = replace(done[by_id["E4d"]], curve=curve(places[1::2], 0.001))
        found = judge(of, done, None, recipes=RECIPES)
        (lost,) = (each for each in found.experiments if each.id == "E4d")
        assert (lost.gate.is_valid, lost.gate.reason) == (
            False,
            "its log and that of C have no step of the window in common",
        )

    def test_runs_that_are_taken_at_their_word_are_named(self) -> None:
        of = plan()
        silent = [replace(each, as_planned=(AsPlanned.UNKNOWN, None)) for each in runs(of)]
        found = judge(of, silent, baseline(), recipes=RECIPES)
        assert found.notes[0].startswith(
            "their logs do not show the precision of the computation, so they are assumed to have run as planned: B"
        )
