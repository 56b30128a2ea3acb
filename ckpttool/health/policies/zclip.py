"""ZClip: clip a gradient norm that is far above its moving average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.formats.strict_json import Json, as_list, as_number, as_object, get_list, number
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import PolicySettings, Watch, least_noticed

_EPSILON = 1e-6  # keeps a constant norm from dividing by zero; part of the published rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ZClipPolicy:
    """A policy that scales down a norm with a z-score above the limit, and averages only the scaled norm.

    Source:
        The published ZClip with its defaults. Its weakness is kept: one NaN makes the mean NaN, and nothing is detected
        after that.
    """

    name: ClassVar[str] = "zclip"
    options: ClassVar[tuple[str, ...]] = ("--threshold",)

    alpha: float = 0.97
    """Share of the old average at each step."""
    z_limit: float = 2.5
    warm_up: int = 25
    """Number of steps that are only averaged."""
    clip_factor: float = 1.0

    @classmethod
    def from_settings(cls, settings: PolicySettings) -> ZClipPolicy:
        """Return the policy with the requested settings, and its own defaults for the rest."""
        return cls(z_limit=settings.threshold or cls().z_limit)

    def begin(self) -> Watch:
        """Return the state before the first step."""
        return _Averaging(self)

    def clipped(self, average: Average, z: float) -> float:
        """Return the scaled-down norm for this z-score: the higher the score, the closer to the mean."""
        return (average.mean + self.z_limit * math.sqrt(average.variance) / (z / self.z_limit)) * self.clip_factor


class _Averaging(Watch):
    """The norms of the warm-up, and the average since."""

    def __init__(self, policy: ZClipPolicy) -> None:
        self._policy = policy
        self._first: list[float] = []
        self._average: Average | None = None

    def judges(self, row: StepMetrics) -> bool:
        return row.global_norm is not None and self._average is not None

    def observe(self, row: StepMetrics) -> tuple[HealthEvent, ...]:
        norm, average = row.global_norm, self._average
        if norm is None:
            return ()
        if average is None:
            self._first.append(norm)
            if len(self._first) == self._policy.warm_up:
                self._average = Average.of(self._first)
            return ()
        z = average.z(norm)
        value = norm
        events: tuple[HealthEvent, ...] = ()
        if z > self._policy.z_limit:
            value = self._policy.clipped(average, z)
            message = f"norm {norm:g} is {z:.1f} standard deviations above the average: clipped to {value:g}"
            events = (HealthEvent(kind=EventKind.CLIP, step=row.step, value=norm, limit=value, message=message),)
        elif math.isnan(norm) and not math.isnan(average.mean):
            message = "the norm is NaN: from here on the average is NaN too, and nothing is detected"
            events = (HealthEvent(kind=EventKind.NONFINITE, step=row.step, value=norm, message=message),)
        self._average = average.after(value, self._policy.alpha)
        return events

    def limit(self) -> float | None:
        average = self._average
        return None if average is None else least_noticed(lambda norm: average.z(norm) > self._policy.z_limit)

    def saved(self) -> Json:
        average = self._average
        return {
            "first": [number(norm) for norm in self._first],
            "average": None if average is None else [number(average.mean), number(average.variance)],
        }

    def restore(self, saved: Json) -> None:
        record = as_object(saved)
        self._first = [as_number(norm) for norm in get_list(record, "first")]
        self._average = None
        if record.get("average") is not None:
            mean, variance = map(as_number, as_list(record["average"]))
            self._average = Average(mean=mean, variance=variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """Exponential moving mean and variance."""

    mean: float
    variance: float

    @staticmethod
    def of(values: Sequence[float]) -> Average:
        """Return the initial average: mean and population variance of the warm-up."""
        mean = sum(values) / len(values)
        return Average(mean=mean, variance=sum((value - mean) * (value - mean) for value in values) / len(values))

    def z(self, value: float) -> float:
        """Return how many standard deviations a value is above the mean."""
        return (value - self.mean) / (math.sqrt(self.variance) + _EPSILON)

    def after(self, value: float, alpha: float) -> Average:
        """Return the average with one more value."""
        mean = alpha * self.mean + (1 - alpha) * value
        return Average(mean=mean, variance=alpha * self.variance + (1 - alpha) * (value - mean) * (value - mean))
