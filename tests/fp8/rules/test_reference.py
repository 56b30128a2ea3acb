"""What others published of FP8 trainings: our classes of them are theirs.

Of most only a few numbers are public. A curve is led through those, with the noise of a batch on both runs; what is
published is the gap, and what was made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from ckpttool.fp8.model.curves import (
    WITHIN_CHANCE,
    Comparison,
    Curve,
    CurveClass,
    Downstream,
    TaskScore,
    Terms,
    Tolerance,
)
from ckpttool.fp8.read.evals import compare_tasks
from ckpttool.fp8.rules.compare import compare
from tests.fp8.rules.curves import Runs, curve


def published(
    loss: Callable[[float], float], gap: Callable[[int], float], *, steps: int, every: int = 1, noise: float = 0.02
) -> tuple[Curve, Curve]:
    """Return two runs on the same data: the loss by the share of the training, the gap by the step.

    Args:
        loss: Of the baseline, without noise.
        gap: Candidate minus baseline.
        steps: Of both.
        every: A line each so many steps.
        noise: Of a batch, the same in both runs; a fifth of it is each run's own.
    """
    chance = Random(steps)  # noqa: S311 (a curve, no secret)
    baseline, candidate = [], []
    for step in range(every, steps + 1, every):
        batch = loss(step / steps) + chance.gauss(0, noise)
        baseline.append(batch + chance.gauss(0, noise / 5))
        candidate.append(batch + chance.gauss(0, noise / 5) + gap(step))
    return curve(baseline, every=every, first=every), curve(candidate, every=every, first=every)


def falls_to(last: float, first: float = 10.0) -> Callable[[float], float]:
    """Return a loss that falls as losses do, and ends at a value."""
    return lambda share: last + (first - last) * math.exp(-20 * share) + 0.15 * (1 - share)


def told(curves: tuple[Curve, Curve], tolerance: Tolerance) -> Comparison:
    return compare(*curves, terms=Terms(tolerance=tolerance))


BAR = Tolerance(value=0.01, relative=False)
FINE_BAR = Tolerance(value=0.0005, relative=False)


@pytest.mark.parametrize(
    ("last", "gap", "steps", "noise", "tolerance", "kind"),
    [
        # marin-community/marin #7271, at step 8,000: the mean of the last hundred differs by +0.002335.
        (1.852993, 0.002782, 5000, 0.02, WITHIN_CHANCE, CurveClass.MATCH),
        # marin-community/marin #7298: H100, same seed and order, flat; their bar was 0.01.
        (2.5, 0.0040, 10_000, 0.02, BAR, CurveClass.MATCH),
        # marin-community/marin #6486: 3.5422 became 3.5497 in low precision.
        (3.5422, 0.0075, 2000, 0.005, WITHIN_CHANCE, CurveClass.MATCH),
        (3.5422, 0.0075, 2000, 0.005, FINE_BAR, CurveClass.EARLY),
        # NVIDIA/Megatron-LM #1152, a mixture of experts: 3.147666 in FP8, 3.054385 in BF16 at step 1,000.
        (3.054385, 0.093281, 1000, 0.02, WITHIN_CHANCE, CurveClass.EARLY),
        # inclusionAI/Ling-V2 #6, after 23 billion tokens.
        (2.238, 0.032, 4000, 0.02, WITHIN_CHANCE, CurveClass.EARLY),
        # NVIDIA/TransformerEngine #1047: a bug in the first micro batch.
        (2.6, 0.08, 1000, 0.02, WITHIN_CHANCE, CurveClass.EARLY),
    ],
)
def test_a_published_gap_is_of_the_class_that_was_made_of_it(
    last: float, gap: float, steps: int, *, noise: float, tolerance: Tolerance, kind: CurveClass
) -> None:
    answer = told(published(falls_to(last), lambda _: gap, steps=steps, noise=noise), tolerance)
    assert (answer.kind, answer.matters) == (kind, kind is CurveClass.EARLY)
    assert answer.relative_gap == pytest.approx(gap / last, rel=0.15)
    assert (answer.onset and answer.onset.not_before) == (1 if kind is CurveClass.EARLY else None)


def test_a_wrong_group_of_the_largest_magnitude_diverges_near_step_1000() -> None:
    # NVIDIA/Megatron-LM, pull request 442: a training of 40 B.
    answer = told(published(falls_to(2.6), lambda step: max(0, step - 1000) * 0.004, steps=2000), WITHIN_CHANCE)
    assert answer.kind is CurveClass.DIVERGED
    assert answer.onset is not None
    assert answer.onset.not_before - 50 <= 1000 <= answer.onset.not_after + 50


def test_the_same_config_twice_is_no_difference_of_tasks() -> None:
    # volcengine/verl #7519: accuracy 0.8719 and 0.8597. One run an arm proves no difference either.
    one, two = ([TaskScore(task="gsm8k", metric="acc,none", value=value, error=0.0092)] for value in (0.8719, 0.8597))
    assert compare_tasks(one, two, CurveClass.MATCH).verdict is Downstream.NONE


def test_seeds_move_a_small_run_by_more_than_fp8_does() -> None:
    # The small training of the benchmark: another seed 0.017, another order of the sums 0.00007, FP8 0.0005.
    runs = Runs(1, noise=0.01, wander=0.0)
    baseline = runs.run()
    fp8 = [value + 0.0005 for value in baseline]
    regrouped, seeded = ([value + by for value in baseline] for by in (0.00007, 0.017))
    with_regrouped, with_seed = (
        compare(curve(baseline), curve(fp8), [curve(repeat)], terms=Terms()) for repeat in (regrouped, seeded)
    )
    assert (with_regrouped.effect.value, with_regrouped.matters) == ("yes", False)
    assert (with_seed.effect.value, with_seed.matters) == ("no", False)
