"""Which experiments there are, in which round, and how long they must be."""

from __future__ import annotations

import re

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import CurveClass, Onset
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Operand, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Fp8Verdict, Gate, Outcome, Shown, Trial, VerdictKind, window
from ckpttool.fp8.rules.experiments import first_round, name_of, next_round, numbers_in, pattern_of
from ckpttool.fp8.rules.grounds import horizon, latest_start, without_onset
from tests.support.fp8_runs import known


def found(kind: VerdictKind, *culprits: Gemm, **outcomes: Outcome) -> Fp8Verdict:
    gate = Gate(is_valid=True, as_planned=AsPlanned.YES, reason=None)
    return Fp8Verdict(
        round=1,
        kind=kind,
        because="",
        culprits=culprits,
        operands=(),
        layers=None,
        explains=None,
        cure=None,
        experiments=tuple(
            Shown(id=name, gate=gate, outcome=outcome) for name, outcome in {"C": Outcome.REFERENCE, **outcomes}.items()
        ),
        shares=None,
        floor=None,
        limit=None,
        next=None,
        notes=(),
    )


def names(trials: tuple[Trial, ...]) -> list[str]:
    return [trial.id for trial in trials]


FIRST = first_round(known())


class TestFirstRound:
    def test_a_late_gap_asks_for_each_product(self) -> None:
        assert names(FIRST) == ["B", "E0", "C", "F", "E2", "E3", "E4f", "E4d", "E4w"]

    def test_an_early_one_asks_for_the_extras_too(self) -> None:
        assert names(first_round(known(CurveClass.EARLY)))[4] == "E1"

    def test_few_extras_are_named_and_many_counted(self) -> None:
        named = [replace(known(CurveClass.EARLY), extras=extras) for extras in ((), ("a", "b"), ("a", "b", "c"))]
        assert [first_round(each)[4].title for each in named] == [
            "the candidate without any extra", "the candidate without a and b", "the candidate without its 3 extras",
        ]  # fmt: skip

    def test_what_needs_a_history_is_left_out_where_scales_are_current(self) -> None:
        current = first_round(replace(known(), recipe=Recipe.TENSORWISE))
        assert names(current) == ["B", "E0", "C", "E2", "E4f", "E4d", "E4w"]
        assert first_round(replace(known(), recipe=None)) == FIRST

    def test_without_a_gap_that_is_told_from_noise_it_asks_for_that_alone(self) -> None:
        assert names(first_round(known(CurveClass.INCONCLUSIVE))) == ["B", "E0", "C"]


class TestNextRound:
    def test_where_nobody_is_named_pairs_extras_and_recipes_are_tried(self) -> None:
        trials = next_round(2, known(), found(VerdictKind.UNDECIDED), FIRST)
        assert names(trials) == ["E1", "E4fd", "E4fw", "E4dw", "E6-tensorwise", "E6-blockwise", "E6-mxfp8"]
        assert {trial.round for trial in trials} == {2}

    def test_after_noise_was_ruled_out_the_first_round_follows(self) -> None:
        asked = known(CurveClass.INCONCLUSIVE)
        trials = next_round(2, asked, found(VerdictKind.UNDECIDED), first_round(asked))
        assert names(trials)[:6] == ["F", "E2", "E3", "E4f", "E4d", "E4w"]
        assert {trial.round for trial in trials} == {2}

    def test_a_culprit_is_cured_and_narrowed_down(self) -> None:
        trials = next_round(2, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD, E3=Outcome.RESTORES), FIRST)
        assert names(trials) == [
            "E5", "E6-tensorwise", "E6-blockwise", "E6-mxfp8", "E7q1", "E7q2", "E7q3", "E7q4", "E8-weight",
            "E8-gradient",
        ]  # fmt: skip
        by_name = {trial.id: trial for trial in trials}
        assert by_name["E5"].products.dgrad is Arithmetic.CURRENT
        assert by_name["E7q2"].layers == r".*layers\.(3|4)\..*"
        assert (by_name["E8-weight"].operand, by_name["E8-weight"].products.dgrad) == (
            Operand.WEIGHT, Arithmetic.CURRENT,
        )  # fmt: skip

    def test_without_a_scale_to_blame_one_operand_alone_is_rounded(self) -> None:
        current = replace(known(), recipe=Recipe.TENSORWISE, layers=())
        trials = next_round(2, current, found(VerdictKind.CULPRIT, Gemm.WGRAD), FIRST)
        assert names(trials) == ["E6-blockwise", "E6-mxfp8", "E8-activation", "E8-gradient"]
        assert trials[-1].products.wgrad is Arithmetic.FAKE

    def test_the_layers_that_were_found_are_cut_again_until_one_is_left(self) -> None:
        first = next_round(2, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD), FIRST)
        second = next_round(3, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD, E7q2=Outcome.RESTORES), (*FIRST, *first))
        assert {trial.id: trial.layers for trial in second} == {
            "E7q2q1": r".*layers\.(3)\..*", "E7q2q2": r".*layers\.(4)\..*",
        }  # fmt: skip
        last = found(VerdictKind.CULPRIT, Gemm.DGRAD, E7q2=Outcome.RESTORES, E7q2q1=Outcome.RESTORES)
        assert next_round(4, known(), last, (*FIRST, *first, *second)) == ()

    def test_an_operand_that_was_found_is_not_asked_for_again(self) -> None:
        named = replace(found(VerdictKind.CULPRIT, Gemm.DGRAD), operands=(Operand.GRADIENT,))
        assert not any(name.startswith("E8") for name in names(next_round(2, known(), named, FIRST)))

    def test_a_coarse_format_asks_for_finer_blocks(self) -> None:
        trials = next_round(2, known(), found(VerdictKind.FORMAT), FIRST)
        assert names(trials) == ["E1", "E4fd", "E4fw", "E4dw", "E6-blockwise", "E6-mxfp8"]
        with_culprit = next_round(2, replace(known(), layers=()), found(VerdictKind.FORMAT, Gemm.FPROP), FIRST)
        assert names(with_culprit) == ["E6-blockwise", "E6-mxfp8", "E8-activation", "E8-weight"]

    def test_the_extras_are_halved_until_one_is_left(self) -> None:
        asked = replace(known(CurveClass.EARLY), extras=("one", "two", "three"))
        first = first_round(asked)
        second = next_round(2, asked, found(VerdictKind.SOFTWARE, E1=Outcome.RESTORES), first)
        assert {trial.id: trial.without for trial in second} == {"E1a": ("one",), "E1b": ("two", "three")}
        well = found(VerdictKind.SOFTWARE, E1=Outcome.RESTORES, E1a=Outcome.RESTORES)
        assert next_round(3, asked, well, (*first, *second)) == ()
        assert next_round(3, asked, found(VerdictKind.SOFTWARE), (*first, *second)) == ()

    @pytest.mark.parametrize("kind", [VerdictKind.WEAK, VerdictKind.DAMAGED_START, VerdictKind.INNOCENT])
    def test_where_nothing_more_can_be_told_nothing_follows(self, kind: VerdictKind) -> None:
        assert next_round(2, known(), found(kind), FIRST) == ()

    def test_a_gap_that_did_not_come_back_is_tried_once_more(self) -> None:
        assert names(next_round(2, known(), found(VerdictKind.NOT_REPRODUCED), FIRST)) == ["C2"]

    def test_a_stale_scale_asks_for_a_recipe_without_history(self) -> None:
        assert names(next_round(2, known(), found(VerdictKind.STALE_SCALE), FIRST))[0] == "E6-tensorwise"

    def test_before_the_candidate_was_run_nothing_follows(self) -> None:
        nothing = replace(found(VerdictKind.UNDECIDED), experiments=())
        assert next_round(2, known(), nothing, FIRST) == ()


def test_layer_1_is_not_layer_10() -> None:
    pattern = pattern_of((1, 3), "layers")
    assert re.fullmatch(pattern, "decoder.layers.1.mlp.linear_fc1")
    assert not re.fullmatch(pattern, "decoder.layers.10.mlp.linear_fc1")
    assert numbers_in(pattern) == {"1", "3"}


def test_a_set_of_products_has_one_name() -> None:
    assert [name_of(gemms) for gemms in ([Gemm.WGRAD, Gemm.DGRAD], [Gemm.DGRAD, Gemm.FPROP])] == ["E4dw", "E4fd"]


class TestHorizon:
    ONSET = Onset(step=Step(500), not_before=Step(450), not_after=Step(550))

    def gaps(self, height: float, slope: float = 0.0) -> tuple[list[Step], list[float]]:
        steps = [Step(step) for step in range(2, 2001, 2)]
        return steps, [0.0 if step < 500 else height + slope * (step - 500) for step in steps]

    def test_a_step_is_seen_at_once(self) -> None:
        assert horizon(*self.gaps(0.1), self.ONSET, start=Step(300), limit=0.02) == 310  # 1.2 * (250 + 4 values' steps)

    def test_a_drift_takes_until_it_is_three_limits_high(self) -> None:
        steps = horizon(*self.gaps(0.0, 0.0001), self.ONSET, start=Step(300), limit=0.02)
        assert steps == pytest.approx(1.2 * (250 + 600 / 0.9), abs=10)

    def test_what_never_is_three_limits_high_cannot_be_told(self) -> None:
        assert horizon(*self.gaps(0.05), self.ONSET, start=Step(300), limit=0.02) is None

    def test_what_takes_over_5000_steps_is_not_planned(self) -> None:
        late = replace(self.ONSET, not_after=Step(5400))
        assert horizon(*self.gaps(0.1), late, start=Step(300), limit=0.02) is None
        assert horizon(*self.gaps(0.1), late, start=Step(500), limit=0.02) == 5000

    def test_200_steps_are_the_least(self) -> None:
        assert horizon(*self.gaps(0.1), self.ONSET, start=Step(540), limit=0.02) == 200

    def test_a_start_lies_well_before_the_gap(self) -> None:
        assert (latest_start(self.ONSET), latest_start(replace(self.ONSET, not_before=Step(20)))) == (350, 0)

    def test_the_last_third_is_judged(self) -> None:
        assert window(Step(100), 600) == (500, 700)

    def test_without_a_gap_a_fifth_is_repeated(self) -> None:
        assert [without_onset(Step(1), Step(last)) for last in (500, 5001, 60_000)] == [200, 1000, 5000]
