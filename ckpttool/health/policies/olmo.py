"""OLMo's skip-step: drop an update whose loss or norm is far above recent ones."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.formats.strict_json import Json, as_number, as_object, get_list, number
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import PolicySettings, Watch, least_noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoPolicy:
    """A policy that skips an update whose loss or norm is too many standard deviations above the window's mean.

    Source:
        OLMo-core's SkipStepOptimizer. Its weaknesses are kept: one NaN in the window prevents every update until it has
        left the window; a skipped spike enters the window and hides the next; after a constant stretch any rise is
        skipped.
    """

    name: ClassVar[str] = "olmo"
    options: ClassVar[tuple[str, ...]] = ("--threshold",)

    window: int = 128
    """Number of steps before the current step."""
    sigmas: float = 6.0

    @classmethod
    def from_settings(cls, settings: PolicySettings) -> OlmoPolicy:
        """Return the policy with the requested settings, and its own defaults for the rest."""
        return cls(sigmas=settings.threshold or cls().sigmas)

    @property
    def warm_up(self) -> int:
        """Number of steps with a norm before the first judgement."""
        return max(2, self.window // 2) - 1

    def begin(self) -> Watch:
        """Return the state before the first step."""
        return _Windows(self)


class _Windows(Watch):
    """The losses and norms of the window up to the last step."""

    def __init__(self, policy: OlmoPolicy) -> None:
        self._policy = policy
        self._losses: deque[float] = deque(maxlen=policy.window + 1)
        self._norms: deque[float] = deque(maxlen=policy.window + 1)

    def judges(self, row: StepMetrics) -> bool:
        return row.global_norm is not None and len(self._norms) >= self._policy.warm_up

    def observe(self, row: StepMetrics) -> tuple[HealthEvent, ...]:
        bad = [
            name
            for name, value, values in (("loss", row.loss, self._losses), ("norm", row.global_norm, self._norms))
            if value is not None and not self._usual(value, values)
        ]
        if not bad:
            return ()
        message = (
            f"{' and '.join(bad)} not within {self._policy.sigmas:g} standard deviations of the last "
            f"{self._policy.window} steps: the update is dropped"
        )
        value = row.global_norm if "norm" in bad else row.loss
        return (HealthEvent(kind=EventKind.SKIP, step=row.step, value=value, message=message),)

    def _usual(self, value: float, values: deque[float]) -> bool:
        values.append(value)
        if len(values) <= self._policy.warm_up:
            return True
        *before, latest = values
        mean, deviation = _mean_and_deviation(before)
        return latest - mean <= self._policy.sigmas * deviation

    def limit(self) -> float | None:
        if len(self._norms) < self._policy.warm_up:
            return None
        full = len(self._norms) == self._norms.maxlen
        mean, deviation = _mean_and_deviation(list(self._norms)[1 if full else 0 :])
        most = self._policy.sigmas * deviation
        return least_noticed(lambda norm: not norm - mean <= most)

    def saved(self) -> Json:
        return {"losses": [number(loss) for loss in self._losses], "norms": [number(norm) for norm in self._norms]}

    def restore(self, saved: Json) -> None:
        record = as_object(saved)
        losses, norms = (map(as_number, get_list(record, key)) for key in ("losses", "norms"))
        self._losses = deque(losses, maxlen=self._losses.maxlen)
        self._norms = deque(norms, maxlen=self._norms.maxlen)


def _mean_and_deviation(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    variance = sum((value - mean) * (value - mean) for value in values) / max(1, len(values) - 1)
    return mean, math.sqrt(variance)
