"""Data skip by the global norm, exactly as in a trainer, or without the trainer's NaN gap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import Json, as_object, get_bool, get_int, get_optional_int
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import PolicySettings, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPolicy:
    """A policy that drops an update whose norm reaches the threshold, and stops at the N-th such update in a row.

    Source:
        The trainer's own code (see its folder for the versions). The wrapper applies an update if nothing
        overflowed and `norm < threshold`, so a norm equal to the threshold is skipped, although the documentation has
        "above". The monitor counts in memory only: a restart begins at 0.
    """

    name: ClassVar[str] = "skip"
    options: ClassVar[tuple[str, ...]] = ("--count", "--nan", "--threshold")

    threshold: float = 3.0
    count_threshold: int = 10
    nan_counts: bool = False
    """Whether a NaN counts as a consecutive skip.

    In the trainer a NaN does not count, because NaN >= threshold is false: the count restarts, although the update is
    dropped.
    """

    @property
    def warm_up(self) -> int:
        """Number of steps with a norm before the first judgement, 0 because a fixed threshold needs no warm-up."""
        return 0

    @classmethod
    def from_settings(cls, settings: PolicySettings) -> SkipPolicy:
        """Return the policy with the requested settings, and its own defaults for the rest."""
        return cls(
            threshold=settings.threshold or cls().threshold,
            count_threshold=settings.count or cls().count_threshold,
            nan_counts=settings.nan_counts,
        )

    def begin(self) -> Watch:
        """Return the state before the first step."""
        return _InARow(policy=self)


@dataclass(slots=True, kw_only=True)
class _InARow(Watch):
    """Consecutive skipped steps: the certain number, and the possible number if the log omits steps."""

    policy: SkipPolicy
    low: int = 0
    """Number of steps that are certainly consecutive."""
    high: int = 0
    """Largest possible number of consecutive steps, if every step that the log omits was skipped as well."""
    last: Step | None = None
    told: bool = False
    """Whether a possible stop in this series was reported."""

    def observe(self, row: StepMetrics) -> tuple[HealthEvent, ...]:
        """Return each lost update, and the stop."""
        norm, last = row.global_norm, self.last
        usual = norm is not None and norm < self.policy.threshold and not row.overflow
        if usual and (last is None or row.step == last + 1):  # nearly every step
            self.last = row.step
            self._reset()
            return ()
        return (*self._arrive(row.step), *self._judge(row))

    def limit(self) -> float | None:
        return self.policy.threshold

    def saved(self) -> Json:
        return {"low": self.low, "high": self.high, "last": self.last, "told": self.told}

    def restore(self, saved: Json) -> None:
        record = as_object(saved)
        self.low, self.high = get_int(record, "low"), get_int(record, "high")
        last = get_optional_int(record, "last", minimum=None)
        self.last = None if last is None else Step(last)
        self.told = get_bool(record, "told")

    def _arrive(self, step: Step) -> Iterator[HealthEvent]:
        """Account for the steps between the previous one and this one."""
        if self.last is not None and step <= self.last:
            yield HealthEvent(
                kind=EventKind.RESTART,
                step=step,
                since_step=self.last,
                message=f"the log goes back from step {self.last} to {step}; the count restarts at 0",
            )
            self._reset()
        elif self.last is not None and step > self.last + 1:
            yield from self._unseen(self.last + 1, step - 1)
        self.last = step

    def _judge(self, row: StepMetrics) -> Iterator[HealthEvent]:
        norm = row.global_norm
        if norm is None:
            yield from self._unseen(row.step, row.step)
        elif norm >= self.policy.threshold or (math.isnan(norm) and self.policy.nan_counts):
            yield from self._skip(row.step, norm)
        elif math.isnan(norm):
            self._reset()
            message = "the norm is NaN: the update is dropped, nothing is logged and the count restarts at 0"
            yield self._event(EventKind.SKIP_UNCOUNTED, row.step, norm, message)
        else:
            self._reset()
            if row.overflow:
                message = (
                    "the loss scaler dropped the update; the norm is below the threshold, so the count restarts at 0"
                )
                yield self._event(EventKind.OVERFLOW, row.step, norm, message)

    def _skip(self, step: Step, norm: float) -> Iterator[HealthEvent]:
        self.low += 1
        self.high += 1
        limit = self.policy.count_threshold
        # Training may continue after the stop: then there are more steps than the stop needs.
        count = f"{self.low} of {limit}" if self.low <= limit else f"{self.low}"
        message = f"norm {norm:g} is at or above {self.policy.threshold:g}: {count} in a row"
        yield self._event(EventKind.SKIP, step, norm, message)
        if self.low >= limit:
            yield self._event(EventKind.STOP, step, norm, f"{limit} in a row: training stops at this step")
        else:
            yield from self._perhaps_stop(step, step)

    def _unseen(self, first: int, last: int) -> Iterator[HealthEvent]:
        """Add steps that are missing in the log, which end the certain series and may extend the possible series."""
        self.high += last - first + 1
        touches = self.low > 0
        self.low = 0
        if touches:
            yield from self._perhaps_stop(Step(first), Step(last))

    def _perhaps_stop(self, first: Step, last: Step) -> Iterator[HealthEvent]:
        limit = self.policy.count_threshold
        if self.high < limit or self.told:
            return
        self.told = True
        yield HealthEvent(
            kind=EventKind.UNDECIDED,
            step=last,
            since_step=first,
            count=self.high,
            message=f"whether there were {limit} in a row by step {last} is unknown: the log does not have every step",
        )

    def _reset(self) -> None:
        self.low = self.high = 0
        self.told = False

    def _event(self, kind: EventKind, step: Step, norm: float, message: str) -> HealthEvent:
        return HealthEvent(
            kind=kind, step=step, value=norm, limit=self.policy.threshold, count=self.low, message=message
        )
