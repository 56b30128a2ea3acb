"""Checks that a run is valid: complete, finite, computed as planned, and with its reference's learning rate."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Curve
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Operand
from ckpttool.fp8.model.plan import AsPlanned, Experiment, Gate, Trial
from ckpttool.fp8.model.settings import Computed, OperandSeen, RunArithmetic
from ckpttool.fp8.rules.align import other_rates

LEAST_VALUES = 8
"""Minimum number of losses in the window, because fewer do not determine a mean."""

_REACHES = 0.9
"""Minimum share of steps that an experiment must have completed."""

_LATE = 10
"""Divisor of the number of steps. A log may begin this much later, because some trainers do not log the first steps."""

_ALLOWED = {
    Arithmetic.FP8: frozenset({Computed.QUANTIZED}),
    Arithmetic.BF16: frozenset({Computed.HIGH}),
    Arithmetic.FAKE: frozenset({Computed.FAKE, Computed.MODIFIED}),
    Arithmetic.CURRENT: frozenset({Computed.CURRENT, Computed.MODIFIED}),
}
_WORDS = {
    Computed.HIGH: "in high precision",
    Computed.QUANTIZED: "in FP8",
    Computed.FAKE: "rounded to FP8",
    Computed.CURRENT: "in FP8 with a current scale",
    Computed.MODIFIED: "changed by a debug feature",
}


def gate(
    experiment: Experiment,
    curve: Curve | None,
    against: Curve | None,
    result: tuple[AsPlanned, str | None],
    *,
    window: tuple[Step, Step],
) -> Gate:
    """Return whether a run is valid.

    Args:
        experiment: The planned experiment.
        curve: Loss of the run by step, or None if there is no log.
        against: Loss of the BF16 run, for comparison, or None if there is no such run or this is that run.
        result: The arithmetic in the logs, and a text about errors or unknowns.
        window: First and last step by which the run is judged.
    """
    as_planned, reason = result
    if curve is None:
        return Gate(is_valid=False, as_planned=AsPlanned.UNKNOWN, reason="it has no log")
    wrong = next(_problems(experiment, curve, window), None) or _apart(curve, against, window)
    if wrong is None and as_planned is AsPlanned.NO:
        wrong = reason
    if wrong is not None:
        return Gate(is_valid=False, as_planned=as_planned, reason=wrong)
    return Gate(is_valid=True, as_planned=as_planned, reason=reason)


def _problems(experiment: Experiment, curve: Curve, window: tuple[Step, Step]) -> Iterator[str]:
    """Yield the problems of a single run. One problem is enough to reject the run."""
    if not curve.steps:
        yield "its log has no loss"
        return
    start, first = experiment.first_step, curve.steps[0]
    needed = start + _REACHES * experiment.steps
    if curve.steps[-1] < needed:
        yield f"it ends at step {curve.steps[-1]}, but step {math.ceil(needed)} is needed"
    within = inside(curve, window)
    if len(within) < LEAST_VALUES:
        yield (
            f"its log has {len(within)} losses from step {window[0]} to {window[1]}, but {LEAST_VALUES} are needed: "
            "log more often"
        )
    for place in within:
        if not math.isfinite(curve.losses[place]):
            yield f"its loss at step {curve.steps[place]} is not finite"
    pace = max(1, curve.steps[1] - first) if len(curve.steps) > 1 else 1
    if not start <= first <= start + max(pace, experiment.steps // _LATE):
        yield f"its log starts at step {first}, but the plan at {start}"


def _apart(curve: Curve, against: Curve | None, window: tuple[Step, Step]) -> str | None:
    if against is None:
        return None
    near = inside(against, window)
    losses = {against.steps[place]: against.losses[place] for place in near if math.isfinite(against.losses[place])}
    common = [place for place in inside(curve, window) if curve.steps[place] in losses]
    if not common:
        return "its log and the BF16 log have no step of the window in common"
    differs = other_rates(against, curve)
    if differs is not None:
        return f"its learning rate differs from the BF16 run at {differs[0]} of {differs[1]} steps"
    if all(curve.losses[place] == losses[curve.steps[place]] for place in common):
        return "its losses equal those of BF16 to the last digit: it is the same log, or nothing was changed"
    return None


def inside(curve: Curve, window: tuple[Step, Step]) -> range:
    """Return the places of a curve within some steps, inclusive."""
    return range(bisect_left(curve.steps, window[0]), bisect_right(curve.steps, window[1]))


def worst(*results: tuple[AsPlanned, str | None]) -> tuple[AsPlanned, str | None]:
    """Combine several results. Any "no" decides, and otherwise any "yes" outweighs an unknown."""
    for level in (AsPlanned.NO, AsPlanned.YES, AsPlanned.UNKNOWN):
        matching = [answer for answer in results if answer[0] is level]
        if matching:
            return next((answer for answer in matching if answer[1] is not None), matching[0])
    return AsPlanned.UNKNOWN, None


def operands_as_planned(trial: Trial, arithmetic: RunArithmetic, *, needs_config: bool) -> tuple[AsPlanned, str | None]:
    """Return whether a run computed as planned, according to the log of each layer's operands.

    Args:
        trial: The planned experiment.
        arithmetic: The arithmetic in the logs.
        needs_config: Whether the change is made by a config of debug features.
    """
    if needs_config and arithmetic.config_missing is not None:
        return (
            AsPlanned.NO,
            f"its debug config {arithmetic.config_missing} was not found, so it ran like the candidate",
        )
    layers: dict[str, list[OperandSeen]] = {}
    for operand in arithmetic.operands:
        layers.setdefault(operand.layer, []).append(operand)
    in_fp8 = [layer for layer, of in layers.items() if any(operand.computed != (Computed.HIGH,) for operand in of)]
    if not layers:
        return AsPlanned.UNKNOWN, "its logs do not show the precision of each operand"
    wants_fp8 = any(trial.products.of(gemm) is not Arithmetic.BF16 for gemm in Gemm)
    if wants_fp8 and not in_fp8:
        return AsPlanned.NO, "none of its layers is in FP8"
    # A layer in high precision throughout is not in FP8 in the candidate either: an output layer, for example.
    for layer in in_fp8 if wants_fp8 else layers:
        is_meant = trial.layers is None or re.search(trial.layers, layer) is not None
        for operand in layers[layer]:
            allowed = _expected(trial, operand.gemm, operand.operand) if is_meant else _ALLOWED[Arithmetic.FP8]
            if not allowed.issuperset(operand.computed):
                deviation = next(computed for computed in operand.computed if computed not in allowed)
                return AsPlanned.NO, (
                    f"in {layer} the {operand.operand.value} of {operand.gemm.value} is {_WORDS[deviation]}, but "
                    f"{_WORDS[min(allowed, key=lambda computed: computed.value)]} was planned"
                )
    if trial.layers is not None and not any(re.search(trial.layers, layer) for layer in layers):
        return AsPlanned.NO, f"it has no layer {trial.layers}"
    return AsPlanned.YES, None


def _expected(trial: Trial, gemm: Gemm, operand: Operand) -> frozenset[Computed]:
    arithmetic = trial.products.of(gemm)
    if trial.operand in {None, operand} or gemm not in trial.products.changed:
        return _ALLOWED[arithmetic]
    return _ALLOWED[Arithmetic.BF16 if arithmetic is Arithmetic.FAKE else Arithmetic.FP8]
