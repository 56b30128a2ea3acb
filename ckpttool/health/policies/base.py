"""The interface of health policies: they turn steps into events, and store their state as JSON."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol

from ckpttool.core.domain.asd import DIALECTS, AsdDialect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import Json
from ckpttool.health.model.events import EventKind, HealthEvent, JudgedSteps


class Watch(Protocol):
    """A policy's state for one training run, step by step."""

    def observe(self, row: StepMetrics) -> tuple[HealthEvent, ...]:
        """Return the events at the next step. If the step goes back, training was resumed."""
        ...

    def judges(self, row: StepMetrics) -> bool:
        """Return whether an unusual finite norm would be detected at the next step; called before `observe`."""
        return row.global_norm is not None

    def end(self) -> tuple[HealthEvent, ...]:
        """Return the events that still occur after the last step; most rules have none."""
        return ()

    def limit(self) -> float | None:
        """Return the smallest norm, exactly, that would be detected at the next step, or None if it is unknown.

        A warm-up has no limit, nor does a rule that cannot detect anything. Non-finite values may still be detected.
        """
        ...

    def saved(self) -> Json:
        """Return the complete state as lossless JSON, with plain types, and NaN only as text."""
        ...

    def restore(self, saved: Json) -> None:
        """Restore the state of another watch with the same policy.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Requested settings of a policy; None for the policy's own default. Each policy declares its settings."""

    threshold: float | None = None
    """`skip`: the norm. Others: standard deviations."""
    count: int | None = None
    """Number of consecutive events after which training stops."""
    nan_counts: bool = False
    """Whether a NaN counts as one of these events."""
    dialect: str | None = None
    """The implementation of the detector."""
    asd_config: str | None = None
    """The value of the detector's environment variable."""
    dialects: tuple[AsdDialect, ...] = DIALECTS
    """All detectors; the first is the default."""


class Policy(Protocol):
    """One rule with its settings, as a frozen value. The watch has the state, so a policy can judge many logs."""

    name: ClassVar[str]
    """Name of the policy for users."""
    options: ClassVar[tuple[str, ...]]
    """The options of `ckpttool log replay` that set this policy, in order."""

    @property
    def warm_up(self) -> int:
        """Number of steps with a norm before the first judgement."""
        ...

    @classmethod
    def from_settings(cls, settings: PolicySettings) -> Policy:
        """Return the policy with the requested settings, and its own defaults for the rest.

        Raises:
            UsageError: A setting is invalid.
        """
        ...

    def begin(self) -> Watch:
        """Return the state before the first step."""
        ...


class Coverage:
    """The steps of a log that a policy judged."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._first: Step | None = None
        self._last: Step | None = None
        self._previous: Step | None = None
        self._stride = 1
        self._norms = 0

    def add(self, row: StepMetrics, *, judged: bool) -> None:
        """Add the next step of the log, and whether it was judged.

        A step that the trainer skipped changed no weight, so it counts as judged as soon as any step was.
        """
        judged = judged or (bool(row.skipped) and self._first is not None)
        if self._previous is not None and row.step > self._previous:
            self._stride = row.step - self._previous
        self._previous = row.step
        if row.global_norm is not None:
            self._norms += 1
        if not judged:
            return
        self._first = row.step if self._first is None else min(self._first, row.step)
        end = Step(row.step + self._stride - 1)
        self._last = end if self._last is None else max(self._last, end)

    def steps(self) -> JudgedSteps:
        """Return the steps that were judged."""
        return JudgedSteps(first=self._first, last=self._last, why=self._why())

    def _why(self) -> str:
        if not self._norms:
            return "no step in the log has a global norm"
        needed = self._policy.warm_up
        if not needed:
            return "the log starts there"
        why = f"{self._policy.name} needs {needed} steps with a norm before it can judge a step"
        return why if self._first is not None else f"{why}, and the log has {self._norms}"


def judge(policy: Policy, metrics: Iterable[StepMetrics], coverage: Coverage | None = None) -> Iterator[HealthEvent]:
    """Yield the events step by step, up to a stop; `metrics` is consumed lazily.

    Args:
        policy: The rule.
        metrics: In the order of the log.
        coverage: Records which steps were judged.
    """
    watch = policy.begin()
    for row in metrics:
        if coverage is not None:
            coverage.add(row, judged=watch.judges(row))
        events = watch.observe(row)
        if events:
            yield from events
            if any(event.kind is EventKind.STOP for event in events):
                return
    yield from watch.end()


def least_noticed(noticed: Callable[[float], bool]) -> float | None:
    """Return the smallest norm that is detected, or None if even the largest norm is not.

    Args:
        noticed: Returns false below some norm, and true from that norm on.
    """
    # Positive floats have the order of the integers with the same bits, so bisection finds the exact one.
    low, high = 0, _bits(sys.float_info.max)
    if not noticed(sys.float_info.max):
        return None
    while low < high:
        middle = (low + high) // 2
        if noticed(_float(middle)):
            high = middle
        else:
            low = middle + 1
    return _float(low)


def _bits(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value
