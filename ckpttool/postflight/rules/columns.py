"""The columns of two logs that both runs have: differences over the repeated steps, in units of the step noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.postflight.rules.numbers import printed_unit, step_noise

Value = Callable[[StepMetrics], "float | None"]

EQUAL = 0.01
"""Difference, in units of the step noise, that counts as equal. A last printed digit above it proves nothing."""

ENOUGH = 10
"""Repeated rows that prove the updates: a lost optimizer shows in 94 % of the measured training runs by then."""

JUDGED = 30
"""Repeated rows that are judged: a lost optimizer recovers within about as many, so later rows change nothing."""


def loss_of(row: StepMetrics) -> float | None:
    """Return the loss of a row."""
    return row.loss


def norm_of(row: StepMetrics) -> float | None:
    """Return the global gradient norm of a row."""
    return row.global_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of both logs."""

    before: dict[Step, float]
    """The first run's values by step."""
    after: dict[Step, float]
    """The resumed run's values by step."""
    unit: float
    """The last printed digit."""
    noise: float
    """The step noise before the save."""

    @property
    def resolution(self) -> float:
        """The last printed digit in units of the step noise."""
        return self.unit / self.noise

    def differences(self, steps: Sequence[Step]) -> list[float]:
        """Return the resumed run's value minus the first run's, at steps that both logs have."""
        return [self.after[step] - self.before[step] for step in steps]

    def z(self, steps: Sequence[Step]) -> list[float]:
        """Return the differences without one printed unit, in units of the step noise."""
        return [max(0.0, abs(d) - self.unit) / self.noise for d in self.differences(steps)]


def column_of(value: Value, before: Sequence[StepMetrics], after: Sequence[StepMetrics], saved: Step) -> Column | None:
    """Return a column; None if a log lacks it, or too few rows before the save show its noise."""
    first, second = _values(value, before), _values(value, after)
    until = [number for step, number in first.items() if step <= saved]
    if not until or not second:
        return None
    unit = max(printed_unit([*first.values()]), printed_unit([*second.values()]))
    noise = step_noise(until, unit)
    if noise is None:
        return None
    return Column(before=first, after=second, unit=unit, noise=noise)


def _values(value: Value, rows: Sequence[StepMetrics]) -> dict[Step, float]:
    """Return the finite values of a column by step."""
    found = ((row.step, value(row)) for row in rows)
    return {step: number for step, number in found if number is not None and math.isfinite(number)}


def largest_z(columns: Sequence[Column], steps: Sequence[Step]) -> list[float]:
    """Return the largest difference of the columns at each step, in units of the step noise."""
    return [max(values) for values in zip(*(column.z(steps) for column in columns), strict=True)]
