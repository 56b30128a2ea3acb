"""Whether the comparison of two logs is enough for an answer, and what is missing if it is not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpttool.core.domain.units import Step, counted
from ckpttool.postflight.model import Aspect, Comparison, Judged, State, Word
from ckpttool.postflight.model.answers import Conclusion, Outcome
from ckpttool.postflight.rules.columns import ENOUGH, EQUAL, JUDGED
from ckpttool.postflight.rules.weights import ROWS_FOR_WORD

_OPEN = frozenset({State.NOT_SHOWN, State.CONSISTENT})

_SUSPECTED = frozenset({Word.RANDOM})
"""Faults that the logs suggest but do not show: lawful changes of the arithmetic look the same."""


def conclude(
    comparison: Comparison,
    aspects: Sequence[Judged],
    accepted: Collection[Word],
    coming: Sequence[Step],
    *,
    incomparable: str | None = None,
) -> Conclusion:
    """Decide whether the run resumed as planned.

    Args:
        comparison: The comparison of the logs.
        aspects: The judgements, in the order of `Aspect`.
        accepted: Faults that the user accepts.
        coming: The steps that only the first run has logged, after the last step of the resumed run.
        incomparable: Why the steps of both runs cannot be compared; None if they can.
    """
    contradicted = [judged for judged in aspects if is_against(judged, accepted)]
    count = len(comparison.repeated)
    words = {judged.word for judged in contradicted}
    if words - _SUSPECTED:
        # A few rows more may show the cause.
        until = _step_of(ROWS_FOR_WORD - count, coming) if words == {Word.DIFFERS} else None
        return Conclusion(outcome=Outcome.WRONG, until=until, is_final=until is None)
    if incomparable is not None:
        return Conclusion(outcome=Outcome.UNKNOWN, missing=incomparable)
    until = _step_of(JUDGED - count, coming)
    if contradicted:
        return Conclusion(
            outcome=Outcome.UNKNOWN, missing=suspicion_of(contradicted[0]), until=until, is_final=until is None
        )
    if all(_is_good(judged, accepted) for judged in aspects if judged.aspect is not Aspect.POSITION):
        return Conclusion(outcome=Outcome.RESUMED)
    if comparison.loss_noise is None:
        data = next(judged for judged in aspects if judged.aspect is Aspect.DATA)
        return Conclusion(outcome=Outcome.UNKNOWN, missing=data.why)
    missing = _missing(comparison, aspects, coming)
    return Conclusion(outcome=Outcome.UNKNOWN, missing=missing, until=until, is_final=until is None)


def is_against(judged: Judged, accepted: Collection[Word]) -> bool:
    """Return whether an aspect contradicts the plan, and the user does not accept that."""
    return judged.state is State.CONTRADICTED and judged.word not in accepted


def suspicion_of(judged: Judged) -> str:
    """Return a fault that is only suspected, with its evidence."""
    return f"the random-number state may be lost: {judged.why}"


def is_suspected(judged: Judged) -> bool:
    """Return whether the logs only suggest the fault."""
    return judged.word in _SUSPECTED


def _is_good(judged: Judged, accepted: Collection[Word]) -> bool:
    return judged.state is State.PROVEN or (judged.state is State.CONTRADICTED and judged.word in accepted)


def _step_of(rows: int, coming: Sequence[Step]) -> Step | None:
    """Return the step that is logged a number of rows later; None if none is expected."""
    return coming[min(rows, len(coming)) - 1] if rows > 0 and coming else None


def _missing(comparison: Comparison, aspects: Sequence[Judged], coming: Sequence[Step]) -> str:
    count = len(comparison.repeated)
    if not count and not coming:
        return (
            f"the first run logged no step after step {comparison.saved} that the resumed run repeats, so only "
            "position and learning rate can be compared"
        )
    resolution = comparison.resolution
    states = {judged.state for judged in aspects if judged.aspect in {Aspect.DATA, Aspect.WEIGHTS}}
    if State.CONSISTENT in states and resolution is not None and resolution > EQUAL:
        return f"the loss is printed with too few digits: the last one is {resolution:.2g} of the step noise"
    if count < ENOUGH and coming:
        rows = min(ENOUGH - count, len(coming))
        return f"{counted(rows, 'more logged step')} of the resumed run, up to step {coming[rows - 1]}"
    unproven = (judged for judged in aspects if judged.aspect is not Aspect.POSITION and judged.state in _OPEN)
    first = next(unproven)
    if first.aspect is Aspect.UPDATE and 0 < count < ENOUGH:
        return f"the first run logged {counted(count, 'step')} to repeat, and {ENOUGH} prove the updates"
    return f"{first.aspect.value} not proven: {first.why}"
