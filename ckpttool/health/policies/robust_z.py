"""The recommended policy: a z-score on the logarithm of the norm, robust against outliers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.formats.strict_json import Json, as_number, as_object, get_int, get_list, number
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import PolicySettings, Watch, least_noticed

MAD_TO_SIGMA = 1.4826
"""Factor from median absolute deviation to standard deviation, for a normal distribution."""

LEAST_SPREAD = 0.01
"""Minimum spread of the logarithm: a norm that varies by less than 1 % is constant, and a change of 1 % is normal."""

_REFRESH = 8
"""Number of new values before median and spread are recomputed, because both hardly change and sorting is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustZPolicy:
    """A policy that detects a norm whose logarithm is far above the median of recent normal norms.

    The median and MAD hardly move when a few values explode. Spikes stay out of the window, so one does not hide the
    next. A non-finite norm is always a spike. `level_shift` consecutive spikes count as a new level, so the rule cannot
    block permanently. Each of the other policies lacks at least one of these properties.
    """

    name: ClassVar[str] = "zscore"
    options: ClassVar[tuple[str, ...]] = ("--threshold",)

    z_limit: float = 7.0
    window: int = 256
    """Number of normal steps in the window."""
    warm_up: int = 64
    """Number of normal steps before the first detection."""
    level_shift: int = 50
    """Number of consecutive spikes that are a new level."""

    @classmethod
    def from_settings(cls, settings: PolicySettings) -> RobustZPolicy:
        """Return the policy with the requested settings, and its own defaults for the rest."""
        return cls(z_limit=settings.threshold or cls().z_limit)

    def begin(self) -> Watch:
        """Return the state before the first step."""
        return _Window(self)


class _Window(Watch):
    """Logarithms of recent normal norms, with median and spread, and of the consecutive spikes since then."""

    def __init__(self, policy: RobustZPolicy) -> None:
        self._policy = policy
        self._normal: deque[float] = deque()
        self._spikes: list[float] = []
        self._median = 0.0
        self._spread = math.inf
        self._stale = 0  # normal norms since median and spread were taken

    def judges(self, row: StepMetrics) -> bool:
        return row.global_norm is not None and len(self._normal) >= self._policy.warm_up

    def observe(self, row: StepMetrics) -> tuple[HealthEvent, ...]:
        norm = row.global_norm
        if norm is None or norm == 0:  # no gradient at all: nothing to compare
            return ()
        if not math.isfinite(norm):
            message = f"the norm is {norm}"
            return (HealthEvent(kind=EventKind.NONFINITE, step=row.step, value=norm, message=message),)
        value = math.log(abs(norm))
        z = self._z(value)
        if len(self._normal) < self._policy.warm_up or z <= self._policy.z_limit:
            self._spikes.clear()
            self._add(value)
            return ()
        self._spikes.append(value)
        limit = math.exp(self._median + self._policy.z_limit * self._spread)
        message = f"norm {norm:g} is {z:.1f} robust standard deviations above the recent norms"
        spike = HealthEvent(kind=EventKind.SPIKE, step=row.step, value=norm, limit=limit, message=message)
        if len(self._spikes) != self._policy.level_shift:
            return (spike,)
        self._normal = deque(self._spikes)
        self._spikes.clear()
        self._refresh()
        message = f"{self._policy.level_shift} spikes in a row: the norm is at a new level"
        return (spike, HealthEvent(kind=EventKind.LEVEL_SHIFT, step=row.step, value=norm, message=message))

    def limit(self) -> float | None:
        if len(self._normal) < self._policy.warm_up:
            return None
        return least_noticed(lambda norm: norm > 0 and self._z(math.log(norm)) > self._policy.z_limit)

    def saved(self) -> Json:
        return {
            "normal": list(self._normal),
            "spikes": list(self._spikes),
            "median": self._median,
            "spread": number(self._spread),
            "stale": self._stale,
        }

    def restore(self, saved: Json) -> None:
        record = as_object(saved)
        normal, self._spikes = ([as_number(value) for value in get_list(record, key)] for key in ("normal", "spikes"))
        self._normal = deque(normal)
        self._median, self._spread = (as_number(record.get(key)) for key in ("median", "spread"))
        self._stale = get_int(record, "stale")

    def _add(self, value: float) -> None:
        self._normal.append(value)
        if len(self._normal) > self._policy.window:
            self._normal.popleft()
        self._stale += 1
        if self._stale >= _REFRESH:
            self._refresh()

    def _z(self, value: float) -> float:
        return (value - self._median) / self._spread

    def _refresh(self) -> None:
        self._median, self._spread = robust(self._normal)
        self._stale = 0


def robust(values: Collection[float]) -> tuple[float, float]:
    """Return median and robust standard deviation; the latter is never below `LEAST_SPREAD`.

    Raises:
        ValueError: There are no values.
    """
    from statistics import (
        median as median_of,
    )  # loads fractions and random, which would slow down the start

    if not values:
        raise ValueError("there is no median of nothing")
    median = median_of(values)
    mad = median_of(abs(value - median) for value in values)
    return median, max(MAD_TO_SIGMA * mad, LEAST_SPREAD)
