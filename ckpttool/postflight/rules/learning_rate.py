"""Whether the learning rate continues its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step, counted
from ckpttool.postflight.rules.numbers import printed_unit

_TOLERANCE = 2e-5
"""Relative difference of two learning rates with six printed digits."""

_LEAST_RESTARTED = 2


class RateState(Enum):
    """What the logged learning rates show."""

    EQUAL = "equal"
    RESTARTED = "restarted"
    NEW_OPTIMIZER = "new-optimizer"
    """Only the first step has another value: the one with which a new optimizer begins."""
    DIFFERS = "differs"
    NOT_SHOWN = "not-shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The learning rates of both logs, compared."""

    state: RateState
    why: str


def rate_of(before: Sequence[StepMetrics], after: Sequence[StepMetrics], saved: Step) -> Rate:
    """Compare the learning rates of both logs.

    Args:
        before: The rows of the run before.
        after: The rows of the resumed run.
        saved: The step of the save.
    """
    old = {row.step: row.learning_rate for row in before if row.learning_rate is not None}
    new = {row.step: row.learning_rate for row in after if row.learning_rate is not None and row.step > saved}
    if not old or not new:
        return Rate(state=RateState.NOT_SHOWN, why="the logs do not show the learning rate")
    unit = max(printed_unit([*old.values()]), printed_unit([*new.values()]))
    common = [step for step in new if step in old]
    from_start = [step for step in new if Step(step - saved) in old]
    restarted = [step for step in from_start if _equal(new[step], old[Step(step - saved)], unit)]
    last = old[max(step for step in old if step <= saved)] if min(old) <= saved else None
    if common and all(_equal(new[step], old[step], unit) for step in common):
        count = counted(len(common), "repeated step")
        return Rate(state=RateState.EQUAL, why=f"the learning rate is equal at {count}")
    # A restored optimizer has the right value until a new scheduler replaces it after the first step.
    first = common[0] if common and _equal(new[common[0]], old[common[0]], unit) else None
    all_restarted = all(step in restarted or step == first for step in from_start)
    continues = last is not None and all(_equal(new[step], last, unit) for step in restarted)
    if len(restarted) >= _LEAST_RESTARTED and all_restarted and not continues:
        return Rate(state=RateState.RESTARTED, why="the learning rate follows the schedule from its first step again")
    others = [step for step in common if not _equal(new[step], old[step], unit)]
    if others == [saved + 1] and _equal(new[others[0]], old[min(old)], unit) and len(common) > _LEAST_RESTARTED:
        return Rate(
            state=RateState.NEW_OPTIMIZER,
            why=f"step {others[0]} has the learning rate of a new optimizer, and those of the next steps are equal",
        )
    if common:
        step = next(step for step in common if not _equal(new[step], old[step], unit))
        return Rate(
            state=RateState.DIFFERS, why=f"the learning rate of step {step} was {old[step]:g} and is {new[step]:g} now"
        )
    return Rate(state=RateState.NOT_SHOWN, why="no step with a learning rate was logged by both runs")


def _equal(first: float, second: float, unit: float) -> bool:
    return abs(first - second) <= max(_TOLERANCE * max(abs(first), abs(second)), 1.01 * unit)
