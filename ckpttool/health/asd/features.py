"""Replay Ascend's online feature-value detection over values, or over the events that it logged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ckpttool.core.domain.asd import TORCH_NPU, AsdDialect
from ckpttool.core.domain.metrics import MINUTE, LocalTime, StepMetrics, local_time_of
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.strict_json import (
    Json,
    JsonObject,
    as_number,
    as_object,
    get_int,
    get_list,
    get_str,
    number,
)
from ckpttool.health.asd.config import config_in_force, dialect_of
from ckpttool.health.asd.strike_book import StrikeBook, saved_rank
from ckpttool.health.asd.strikes import Abnormal
from ckpttool.health.model.asd import AsdConfig, AsdEvent, AsdKind, FeatureValue
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import PolicySettings, Watch, least_noticed

_KEEP = 0.99  # share of the old mean
_WARM_UP = 10  # number of values before finite values can be abnormal

_LOGGED = {
    AsdKind.EVENT: (EventKind.SDC_EVENT, "an abnormal feature value; it cannot be counted without its time"),
    AsdKind.ECHO: (EventKind.SDC_ECHO, "an abnormal feature value, counted as an echo of another"),
    AsdKind.STRIKE: (EventKind.SDC_STRIKE, "the detector logged a strike"),
    AsdKind.CHECKSUM_ON: (EventKind.CHECKSUM_ON, "the checksum of matrix products starts"),
    AsdKind.CHECKSUM_OFF: (EventKind.CHECKSUM_OFF, "the checksum of matrix products ends"),
    AsdKind.CHECKSUM_DROPPED: (
        EventKind.CHECKSUM_DROPPED,
        "a strike that does not start the checksum of matrix products",
    ),
    AsdKind.CHECKSUM_ABNORMAL: (
        EventKind.CHECKSUM_ABNORMAL,
        "a matrix product was wrong: the hardware of this rank is broken",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturePolicy:
    """A policy with the abnormal values, cooldown, strikes and checksum runs of one of three implementations.

    Source:
        torch_npu 7.1 and later, MindSpore 2.7.1 and later: the value test is the same in both. A trainer's monitor only
        counts what the device logged.
    """

    name: ClassVar[str] = "features"
    options: ClassVar[tuple[str, ...]] = ("--asd-config", "--dialect")

    config: AsdConfig
    dialect: AsdDialect = TORCH_NPU

    @property
    def warm_up(self) -> int:
        """Number of values before the first judgement."""
        return _WARM_UP

    @classmethod
    def from_settings(cls, settings: PolicySettings) -> FeaturePolicy:
        """Return the policy with the requested settings, and the dialect's defaults for the rest.

        Raises:
            UsageError: There is no such dialect, or its parser would stop the training because of this string.
        """
        dialect = dialect_of(settings.dialect, settings.dialects)
        return cls(config=config_in_force(settings.asd_config, dialect), dialect=dialect)

    def begin(self) -> FeatureWatch:
        """Return the state before the first value."""
        return FeatureWatch(policy=self)

    def judge_events(self, events: Iterable[AsdEvent]) -> Iterator[HealthEvent]:
        """Count logged events again, and include the detector's own conclusions.

        Single events are logged only at some log levels. So a logged strike counts, whether or not the log has the
        events of its group.

        Args:
            events: Events in order of time, each once.
        """
        all_events = tuple(events)
        logged_runs = any(event.kind is AsdKind.CHECKSUM_ON for event in all_events)
        config = replace(self.config, with_checksum=self.config.with_checksum and not logged_runs)
        count = StrikeBook(dialect=self.dialect, config=config)
        struck: set[tuple[Rank | None, LocalTime | None]] = set()
        for event in all_events:
            if event.kind is AsdKind.EVENT and event.time is not None:
                abnormal = Abnormal(
                    time=event.time, step=event.step, rank=event.rank, value=event.value, name=event.name
                )
                for noticed in count.count(abnormal):
                    if noticed.kind is EventKind.SDC_STRIKE:
                        struck.add((noticed.rank, noticed.time))
                    yield noticed
                continue
            if event.kind is AsdKind.CHECKSUM_OFF:
                count.forget()
            if event.kind is not AsdKind.STRIKE or (event.rank, event.time) not in struck:
                yield replace(_logged(event), since_time=self._group_since(event, all_events))
        yield from count.advance(None)

    def _group_since(self, strike: AsdEvent, events_left: tuple[AsdEvent, ...]) -> LocalTime | None:
        """Return the first event of a logged strike's group: the first one listed, or else the first in the window."""
        listed = strike.group_since is not None or strike.group_since_step is not None
        if strike.kind is not AsdKind.STRIKE or listed or strike.time is None:
            return strike.group_since
        begin = strike.time - self.config.strikes_window * MINUTE
        times = [
            event.time
            for event in events_left
            if event.kind is AsdKind.EVENT
            and event.time is not None
            and begin <= event.time <= strike.time
            and event.rank in {None, strike.rank}
        ]
        return min(times, default=None)


@dataclass(slots=True, kw_only=True)
class ValueTest:
    """The detector's state for one parameter.

    Source:
        `upper_thresh1` multiplies the debiased mean, although it is documented as an absolute value. A level that stays
        high is abnormal once. Values between the two thresholds do not enter the mean: if they persist, it stays
        frozen.
    """

    config: AsdConfig
    mean: float = 0.0
    """Moving mean, started at 0 and not debiased."""
    accepted: int = 0
    previous: float = 0.0
    replaced: float = 0.0
    """The value before `previous`, for the line about an abnormal value; not saved, because no rule needs it."""

    def abnormal(self, value: float) -> bool:
        """Add one value and return whether it is abnormal."""
        alarm, accept = self._bounds(value)
        abnormal = self._is_abnormal(value, alarm)
        self.replaced, self.previous = self.previous, value
        if not abnormal and value != 0 and value <= accept:
            self.accepted += 1
            self.mean = self.mean * _KEEP + value * (1 - _KEEP)
        return abnormal

    def limit(self) -> float | None:
        """Return the root of the smallest abnormal value, or None if no single value would be abnormal.

        In the warm-up, only non-finite values are abnormal. After a high value, values of about that height are normal.
        """
        alarm, _ = self._bounds(math.inf)
        if alarm == math.inf or 2 * alarm < self.previous < math.inf:
            return None
        return least_noticed(lambda root: self._is_abnormal(root * root, alarm))

    def _bounds(self, value: float) -> tuple[float, float]:
        """Return the alarm bound of a value, and the bound for the mean; in a warm-up, both bounds are the value."""
        if self.accepted < _WARM_UP or self.mean == 0:
            return value, value
        debiased = self.mean / (1 - _KEEP**self.accepted)
        return debiased * self.config.upper_thresh1, debiased * self.config.upper_thresh2

    def _is_abnormal(self, value: float, alarm: float) -> bool:
        if value == 0:
            return False
        return not math.isfinite(value) or (value > alarm and abs(value - self.previous) > alarm)

    def saved(self) -> JsonObject:
        """Return the complete state, as JSON."""
        return {"mean": number(self.mean), "accepted": self.accepted, "previous": number(self.previous)}

    def restore(self, saved: JsonObject) -> None:
        """Restore a state from the output of `saved`.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        self.mean, self.previous = (as_number(saved.get(key)) for key in ("mean", "previous"))
        self.accepted = get_int(saved, "accepted")


@dataclass(slots=True, kw_only=True)
class FeatureWatch(Watch):
    """The values of every parameter on every rank, the strikes of every rank, and the checksum of all ranks."""

    policy: FeaturePolicy
    histories: dict[tuple[Rank | None, str], ValueTest] = field(default_factory=dict)
    book: StrikeBook = field(init=False)

    def __post_init__(self) -> None:
        self.book = StrikeBook(dialect=self.policy.dialect, config=self.policy.config)

    def judges(self, row: StepMetrics) -> bool:
        """Return whether an unusual norm would be detected."""
        return row.global_norm is not None and self._history(None, "").accepted >= _WARM_UP

    def observe(self, row: StepMetrics) -> tuple[HealthEvent, ...]:
        """Judge the square of the global norm, a substitute: the detector sees a parameter's largest gradient.

        Without times in the log there are no cooldown and no strikes.
        """
        norm = row.global_norm
        if norm is None:
            return ()
        return self.take(FeatureValue(value=norm * norm, step=row.step, time=local_time_of(row.time)))

    def take(self, value: FeatureValue) -> tuple[HealthEvent, ...]:
        """Judge the next feature value of a parameter on a rank."""
        if not self._history(value.rank, value.name).abnormal(value.value):
            return ()
        if value.time is None:
            message = "an abnormal feature value; it cannot be counted without its time"
            kind = EventKind.SDC_EVENT
            return (HealthEvent(kind=kind, step=value.step, rank=value.rank, value=value.value, message=message),)
        abnormal = Abnormal(time=value.time, step=value.step, rank=value.rank, value=value.value, name=value.name)
        return tuple(self.book.count(abnormal))

    def _history(self, rank: Rank | None, name: str) -> ValueTest:
        key = (rank, name)
        if key not in self.histories:
            self.histories[key] = ValueTest(config=self.policy.config)
        return self.histories[key]

    def end(self) -> tuple[HealthEvent, ...]:
        """Return the events that a running or waiting checksum causes on its own."""
        return tuple(self.book.advance(None))

    def limit(self) -> float | None:
        """Return the norm whose square is abnormal; during the cooldown, such a norm may still cause no event."""
        return self._history(None, "").limit()

    def saved(self) -> Json:
        """Return the complete state, as JSON."""
        return {
            "histories": [
                {"rank": rank, "name": name, **history.saved()} for (rank, name), history in self.histories.items()
            ],
            **self.book.saved(),
        }

    def restore(self, saved: Json) -> None:
        """Restore the state of another watch with the same policy.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        record = as_object(saved)
        self.histories.clear()
        for history in map(as_object, get_list(record, "histories")):
            self._history(saved_rank(history), get_str(history, "name")).restore(history)
        self.book.restore(saved)


def _logged(event: AsdEvent) -> HealthEvent:
    kind, message = _LOGGED[event.kind]
    return HealthEvent(
        kind=kind,
        step=event.step,
        time=event.time,
        rank=event.rank,
        value=event.value,
        since_step=event.group_since_step,
        message=event.message or message,
    )
