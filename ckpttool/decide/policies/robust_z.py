"""Our recommendation: a z-score on the logarithm of the norm that outliers cannot bend."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ckpttool.domain.health_events import EventKind, HealthEvent
from ckpttool.domain.metrics import StepMetrics
from ckpttool.domain.units import Step

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""

LEAST_SPREAD = 0.01
"""Of the logarithm: a norm that wanders by less than 1 % is constant, and 1 % more is no news."""

_REFRESH = 8
"""New values after which median and spread are taken anew: they hardly move, and sorting is what costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustZPolicy:
    """Notice a norm whose logarithm lies far above the median of the recent normal ones.

    Median and MAD do not move when a few values explode; spikes stay out of the window, so one does not hide the next;
    what is not finite is always a spike; and a row of spikes as long as `level_shift` is a new level, so the rule
    cannot be stuck for good. The other policies here fail in at least one of these.
    """

    z_limit: float = 7.0
    window: int = 256
    """Normal steps that are remembered."""
    warm_up: int = 64
    """Normal steps before anything is noticed."""
    level_shift: int = 50
    """Spikes in a row that are the new level."""

    @property
    def name(self) -> str:
        """What users call it."""
        return "zscore"

    def judge(self, metrics: Iterable[StepMetrics]) -> Iterator[HealthEvent]:
        """Yield each spike, and each shift of the level."""
        normal = _Window(size=self.window)
        row_of_spikes: list[float] = []
        for row in metrics:
            norm = row.global_norm
            if norm is None or norm == 0:  # no gradient at all: nothing to compare
                continue
            if not math.isfinite(norm):
                yield _nonfinite(row.step, norm)
                continue
            value = math.log(abs(norm))
            z = normal.z(value)
            if len(normal.values) < self.warm_up or z <= self.z_limit:
                row_of_spikes.clear()
                normal.add(value)
                continue
            row_of_spikes.append(value)
            message = f"norm {norm:g} lies {z:.1f} robust standard deviations above the recent ones"
            limit = normal.limit(self.z_limit)
            yield HealthEvent(kind=EventKind.SPIKE, step=row.step, value=norm, limit=limit, message=message)
            if len(row_of_spikes) == self.level_shift:
                normal.restart(row_of_spikes)
                row_of_spikes.clear()
                message = f"{self.level_shift} spikes in a row: the norm has a new level"
                yield HealthEvent(kind=EventKind.LEVEL_SHIFT, step=row.step, value=norm, message=message)


def _nonfinite(step: Step, norm: float) -> HealthEvent:
    return HealthEvent(kind=EventKind.NONFINITE, step=step, value=norm, message=f"the norm is {norm}")


@dataclass(slots=True, kw_only=True)
class _Window:
    """Logarithms of recent normal norms, with their median and spread."""

    size: int
    values: deque[float] = field(default_factory=deque)
    median: float = 0.0
    spread: float = math.inf
    stale: int = 0

    def add(self, value: float) -> None:
        self.values.append(value)
        if len(self.values) > self.size:
            self.values.popleft()
        self.stale += 1
        if self.stale >= _REFRESH:
            self._refresh()

    def restart(self, values: Iterable[float]) -> None:
        self.values = deque(values, maxlen=None)
        self._refresh()

    def z(self, value: float) -> float:
        return (value - self.median) / self.spread

    def limit(self, z: float) -> float:
        return math.exp(self.median + z * self.spread)

    def _refresh(self) -> None:
        self.median, self.spread = robust(self.values)
        self.stale = 0


def robust(values: Collection[float]) -> tuple[float, float]:
    """Return median and robust standard deviation; the latter is never below `LEAST_SPREAD`.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("there is no median of nothing")
    median = statistics.median(values)
    mad = statistics.median(abs(value - median) for value in values)
    return median, max(MAD_TO_SIGMA * mad, LEAST_SPREAD)
