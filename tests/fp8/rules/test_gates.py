"""What keeps a run of an experiment from counting, and what it shows where it counts."""

from __future__ import annotations

import math

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Curve
from ckpttool.fp8.model.fp8 import OPERANDS, Arithmetic, Gemm, Operand
from ckpttool.fp8.model.plan import AsPlanned, Gate, Outcome, Products, Trial, VerdictKind
from ckpttool.fp8.model.settings import Computed, OperandSeen, RunArithmetic
from ckpttool.fp8.rules.experiments import first_round, next_round
from ckpttool.fp8.rules.gates import gate, operands_as_planned, worst
from ckpttool.fp8.rules.shares import outcome, recovered, recovery, stretch
from tests.fp8.rules.test_experiments import found
from tests.support.fp8_runs import EVERY, START, STEPS, curve, experiment, known, plan

TRIALS = {trial.id: trial for trial in first_round(known())}
TRIALS |= {
    trial.id: trial
    for restores in (Outcome.RESTORES, Outcome.NO)
    for trial in next_round(2, known(), found(VerdictKind.CULPRIT, Gemm.DGRAD, E3=restores), ())
}
E4D = experiment(TRIALS["E4d"])
LAST = START + STEPS
WHOLE = range(START + EVERY, LAST + 1, EVERY)


def judged(shown: Curve | None, against: Curve | None = None, told: tuple[AsPlanned, str | None] | None = None) -> Gate:
    answer = (AsPlanned.YES, None) if told is None else told
    return gate(E4D, shown, against, answer, window=plan().window)


class TestGates:
    def test_a_whole_run_counts(self) -> None:
        passed = Gate(is_valid=True, as_planned=AsPlanned.YES, reason=None)
        assert judged(curve(WHOLE, own=1), curve(WHOLE)) == passed
        same = judged(curve(WHOLE), curve(WHOLE))
        assert (same.is_valid, (same.reason or "").split(":")[0]) == (
            False, "its losses equal those of BF16 to the last digit",
        )  # fmt: skip

    def test_what_logs_do_not_tell_is_allowed_and_said(self) -> None:
        unknown = judged(curve(WHOLE), told=(AsPlanned.UNKNOWN, "its logs do not show"))
        assert unknown == Gate(is_valid=True, as_planned=AsPlanned.UNKNOWN, reason="its logs do not show")

    def test_no_log_is_no_run(self) -> None:
        assert judged(None).reason == "it has no log"
        assert judged(curve(())).reason == "its log has no loss"

    def test_half_a_horizon_does_not_count(self) -> None:
        assert judged(curve(range(START + EVERY, 401, EVERY))).reason == "it ends at step 400, but step 640 is needed"
        assert judged(curve(range(START + EVERY, 641, EVERY))).is_valid

    def test_a_loss_now_and_then_tells_no_mean(self) -> None:
        few = judged(curve(range(START + 50, LAST + 1, 50)))
        assert few.reason == "its log has 5 losses from step 500 to 700, but 8 are needed: log more often"

    def test_a_loss_that_is_no_number_does_not_count(self) -> None:
        shown = curve(WHOLE)
        broken = replace(shown, losses=(*shown.losses[:-1], math.nan))
        assert judged(broken).reason == "its loss at step 700 is not finite"
        early = replace(shown, losses=(math.inf, *shown.losses[1:]))
        assert judged(early).is_valid

    @pytest.mark.parametrize("first", [50, 180])
    def test_a_run_from_another_checkpoint_does_not_count(self, first: int) -> None:
        other = judged(curve(range(first, LAST + 1, EVERY)))
        assert other.reason == f"its log starts at step {first}, but the plan at 100"

    def test_another_learning_rate_does_not_count(self) -> None:
        warmer = judged(curve(WHOLE, rate=3.1e-3), curve(WHOLE))
        assert warmer.reason == "its learning rate differs from the BF16 run at 60 of 60 steps"

    def test_what_shares_no_step_with_bf16_does_not_count(self) -> None:
        apart = judged(curve(step + 1 for step in WHOLE if step < LAST), curve(WHOLE))
        assert apart.reason == "its log and the BF16 log have no step of the window in common"

    def test_what_ran_otherwise_does_not_count(self) -> None:
        wrong = judged(curve(WHOLE), told=(AsPlanned.NO, "in FP8"))
        assert wrong == Gate(is_valid=False, as_planned=AsPlanned.NO, reason="in FP8")


def test_one_no_is_enough_and_a_yes_outweighs_silence() -> None:
    silent: tuple[AsPlanned, str | None] = (AsPlanned.UNKNOWN, "silent")
    assert worst(silent, (AsPlanned.YES, None), (AsPlanned.NO, "no")) == (AsPlanned.NO, "no")
    assert worst(silent, (AsPlanned.YES, None)) == (AsPlanned.YES, None)
    assert worst(silent) == silent
    assert worst() == (AsPlanned.UNKNOWN, None)


Told = dict[Gemm, tuple[Computed, ...]]

FP8: Told = dict.fromkeys(Gemm, (Computed.QUANTIZED,))
DGRAD_HIGH: Told = {**FP8, Gemm.DGRAD: (Computed.HIGH,)}
HIGH: Told = dict.fromkeys(Gemm, (Computed.HIGH,))


def log(*layers: tuple[str, Told], missing: str | None = None, **of: tuple[Computed, ...]) -> RunArithmetic:
    """Return what a log says of layers, and where given of single operands: `dgrad_weight`."""
    return RunArithmetic(
        sources=("debug.log",),
        arguments=None,
        operands=tuple(
            OperandSeen(
                layer=layer,
                gemm=gemm,
                operand=operand,
                computed=of.get(f"{gemm.value}_{operand.value}", computed[gemm]),
            )
            for layer, computed in layers
            for gemm in Gemm
            for operand in OPERANDS[gemm]
        ),
        config_missing=missing,
        recipe=None,
        converted=False,
        problems=(),
    )


def as_planned(name: str, seen: RunArithmetic) -> tuple[AsPlanned, str | None]:
    return operands_as_planned(TRIALS[name], seen, needs_config=name not in {"B", "C"})


class TestAsPlanned:
    def test_a_product_in_high_precision_is_as_planned_and_in_fp8_it_is_not(self) -> None:
        assert as_planned("E4d", log(("layers.1.fc1", DGRAD_HIGH))) == (AsPlanned.YES, None)
        assert as_planned("E4d", log(("layers.1.fc1", FP8))) == (
            AsPlanned.NO,
            "in layers.1.fc1 the gradient of dgrad is in FP8, but in high precision was planned",
        )

    def test_one_layer_that_went_its_own_way_is_enough(self) -> None:
        mixed = log(("layers.1.fc1", DGRAD_HIGH), ("layers.2.fc1", FP8))
        assert as_planned("E4d", mixed)[0] is AsPlanned.NO

    def test_what_changed_during_the_run_is_not_as_planned(self) -> None:
        both: Told = {**FP8, Gemm.DGRAD: (Computed.HIGH, Computed.QUANTIZED)}
        assert as_planned("E4d", log(("layers.1.fc1", both)))[0] is AsPlanned.NO

    def test_an_output_layer_that_is_never_in_fp8_is_left_alone(self) -> None:
        assert as_planned("E4d", log(("layers.1.fc1", DGRAD_HIGH), ("output_layer", HIGH)))[0] is AsPlanned.YES

    def test_a_run_wholly_in_high_precision_is_bf16_and_nothing_else(self) -> None:
        high = log(("layers.1.fc1", HIGH))
        assert as_planned("B", high) == (AsPlanned.YES, None)
        assert as_planned("C", high) == (AsPlanned.NO, "none of its layers is in FP8")
        assert as_planned("B", log(("layers.1.fc1", FP8)))[0] is AsPlanned.NO

    def test_what_is_rounded_is_told_from_what_is_quantized(self) -> None:
        fake: Told = dict.fromkeys(Gemm, (Computed.MODIFIED, Computed.FAKE))
        assert as_planned("E3", log(("layers.1.fc1", fake))) == (AsPlanned.YES, None)
        assert as_planned("E3", log(("layers.1.fc1", FP8)))[0] is AsPlanned.NO

    def test_a_config_that_was_not_found_changed_nothing(self) -> None:
        lost = log(missing="E4d/inspect.yaml")
        assert as_planned("E4d", lost) == (
            AsPlanned.NO,
            "its debug config E4d/inspect.yaml was not found, so it ran like the candidate",
        )
        assert as_planned("C", lost)[0] is AsPlanned.UNKNOWN

    def test_silent_logs_tell_nothing(self) -> None:
        assert as_planned("E4d", log()) == (AsPlanned.UNKNOWN, "its logs do not show the precision of each operand")

    def test_layers_that_were_not_meant_stay_in_fp8(self) -> None:
        quarter = log(("layers.1.fc1", DGRAD_HIGH), ("layers.3.fc1", FP8))
        assert as_planned("E7q1", quarter) == (AsPlanned.YES, None)
        assert as_planned("E7q2", quarter)[0] is AsPlanned.NO
        assert as_planned("E7q4", log(("layers.3.fc1", FP8))) == (
            AsPlanned.NO,
            r"it has no layer .*layers\.(7|8)\..*",
        )

    def test_one_operand_alone_is_told_from_both(self) -> None:
        one = log(("layers.1.fc1", FP8), dgrad_gradient=(Computed.CURRENT,))
        both = log(("layers.1.fc1", FP8), dgrad_gradient=(Computed.CURRENT,), dgrad_weight=(Computed.CURRENT,))
        trial = replace(TRIALS["E8-gradient"], products=Products.fp8_but(Arithmetic.CURRENT, frozenset({Gemm.DGRAD})))
        assert operands_as_planned(trial, one, needs_config=True)[0] is AsPlanned.YES
        assert operands_as_planned(trial, both, needs_config=True)[0] is AsPlanned.NO

    def test_one_operand_alone_in_fp8_leaves_the_other_in_high_precision(self) -> None:
        seen = log(("layers.1.fc1", DGRAD_HIGH), dgrad_gradient=(Computed.FAKE,))
        trial: Trial = replace(
            TRIALS["E8-gradient"],
            operand=Operand.GRADIENT,
            products=Products.fp8_but(Arithmetic.FAKE, frozenset({Gemm.DGRAD})),
        )
        assert operands_as_planned(trial, seen, needs_config=True)[0] is AsPlanned.YES
        assert operands_as_planned(trial, log(("layers.1.fc1", FP8)), needs_config=True)[0] is AsPlanned.NO


class TestShares:
    WINDOW = (Step(500), Step(700))

    def test_a_share_is_known_better_than_both_gaps(self) -> None:
        reference = curve(WHOLE, wander=0.0)
        whole = stretch(reference, curve(WHOLE, 0.5, own=3), self.WINDOW)
        half = stretch(reference, curve(WHOLE, 0.25, own=4), self.WINDOW)
        assert whole is not None
        assert half is not None
        share = recovered(whole, half)
        assert share is not None
        assert share[0] == pytest.approx(0.5, abs=0.01)
        assert share[1] < share[0] < share[2] < share[1] + 0.01
        assert recovered(replace(whole, steps=tuple(Step(step + 1) for step in whole.steps)), half) is None

    def test_nothing_closes_a_gap_of_nothing(self) -> None:
        none = stretch(curve(WHOLE), curve(WHOLE), self.WINDOW)
        assert none is not None
        assert recovered(none, none) == (0.0, 0.0, 0.0)

    def test_without_a_common_step_there_is_no_stretch(self) -> None:
        assert stretch(curve(WHOLE), curve([101, 102]), self.WINDOW) is None

    @pytest.mark.parametrize(
        ("gap", "share", "said"),
        [
            (0.05, (0.9, 0.8, 1.0), Outcome.RESTORES),
            (0.05, (0.89, 0.8, 1.0), Outcome.PART),
            (0.01, (0.0, -1.0, 1.0), Outcome.RESTORES),
            (0.3, (0.25, 0.01, 0.5), Outcome.PART),
            (0.3, (0.24, 0.01, 0.5), Outcome.NO),
            (0.3, (0.4, -0.01, 0.5), Outcome.NO),
            (0.9, (-0.5, -0.7, -0.26), Outcome.WORSE),
            (0.9, (-0.5, -0.7, -0.24), Outcome.NO),
        ],
    )
    def test_what_an_experiment_did(self, gap: float, share: tuple[float, float, float], said: Outcome) -> None:
        assert outcome(gap, share, counts=0.01) is said

    def recovery(self, gap: float, slope: float, every: int = EVERY) -> tuple[Outcome, float | None]:
        places = range(START + every, LAST + 1, every)
        shown = curve(places, gap, own=5)
        falling = tuple(loss + slope * step for loss, step in zip(shown.losses, places, strict=True))
        left = stretch(curve(places, wander=0.0), replace(shown, losses=falling), self.WINDOW)
        assert left is not None
        return recovery(left, 0.01)

    def test_what_falls_towards_bf16_recovers(self) -> None:
        said, further = self.recovery(0.5, -0.0005)
        assert said is Outcome.RECOVERING
        assert further == pytest.approx(320, abs=20)

    def test_from_below_it_recovers_upwards(self) -> None:
        assert self.recovery(-0.5, 0.0005)[0] is Outcome.RECOVERING
        assert self.recovery(-0.5, -0.0005)[0] is Outcome.STUCK

    def test_what_stays_is_stuck_and_what_has_arrived_is_recovered(self) -> None:
        assert self.recovery(0.3, 0.0) == (Outcome.STUCK, None)
        assert self.recovery(0.005, 0.0) == (Outcome.RECOVERED, None)

    def test_few_values_tell_no_slope(self) -> None:
        assert self.recovery(0.5, -0.0005, every=25) == (Outcome.STUCK, None)
