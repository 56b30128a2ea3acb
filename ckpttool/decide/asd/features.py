"""Ascend's on-line feature-value detection, replayed over values or over the events that it logged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ckpttool.decide.asd.checksum import ChecksumClock
from ckpttool.decide.asd.strikes import Abnormal, StrikeRule, strike_rule
from ckpttool.domain.asd import AsdConfig, AsdDialect, AsdEvent, AsdKind, FeatureValue
from ckpttool.domain.health_events import EventKind, HealthEvent
from ckpttool.domain.metrics import LocalTime, StepMetrics, parse_local_time
from ckpttool.domain.units import Rank

_KEEP = 0.99  # share of the old mean
_MINUTE = 60.0
_WARM_UP = 10  # values before anything but NaN and infinity is abnormal

_LOGGED = {
    AsdKind.EVENT: (EventKind.SDC_EVENT, "an abnormal feature value; without its time nothing can be counted"),
    AsdKind.STRIKE: (EventKind.SDC_STRIKE, "the detector logged a strike"),
    AsdKind.CHECKSUM_ON: (EventKind.CHECKSUM_ON, "the checksum of matrix products starts"),
    AsdKind.CHECKSUM_OFF: (EventKind.CHECKSUM_OFF, "the checksum of matrix products ends"),
    AsdKind.CHECKSUM_ABNORMAL: (
        EventKind.CHECKSUM_ABNORMAL,
        "a matrix product was wrong: the hardware of this rank is broken",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturePolicy:
    """Abnormal values, cooldown, strikes and checksum runs as one of three implementations has them.

    Source:
        torch_npu 7.1 and later, MindSpore 2.7.1 and later, MindFormers' SDCMonitor. The value test is the same in the
        first two; MindFormers only counts what the device logged.
    """

    config: AsdConfig
    dialect: AsdDialect = AsdDialect.TORCH_NPU

    @property
    def name(self) -> str:
        """What users call it."""
        return "features"

    def judge(self, metrics: Iterable[StepMetrics]) -> Iterator[HealthEvent]:
        """Judge the square of the global norm, a stand-in: the detector sees the largest gradient of a parameter.

        Without times in the log there are no cooldown and no strikes.
        """
        values = (
            FeatureValue(value=row.global_norm * row.global_norm, step=row.step, time=_time(row.time))
            for row in metrics
            if row.global_norm is not None
        )
        return self.judge_values(values)

    def judge_values(self, values: Iterable[FeatureValue]) -> Iterator[HealthEvent]:
        """Judge feature values, in the order in which they were computed."""
        histories: dict[tuple[Rank | None, str], ValueTest] = {}
        count = _Counting(policy=self)
        for value in values:
            history = histories.setdefault((value.rank, value.name), ValueTest(config=self.config))
            if not history.abnormal(value.value):
                continue
            if value.time is None:
                message = "an abnormal feature value; without its time nothing can be counted"
                kind = EventKind.SDC_EVENT
                yield HealthEvent(kind=kind, step=value.step, rank=value.rank, value=value.value, message=message)
            else:
                yield from count.take(
                    Abnormal(time=value.time, step=value.step, rank=value.rank, value=value.value, name=value.name)
                )
        yield from count.end()

    def judge_events(self, events: Iterable[AsdEvent]) -> Iterator[HealthEvent]:
        """Count logged events anew, and pass on what the detector itself concluded.

        Single events are logged only where a log level shows them; so a strike that was logged stands, whether or not
        the events of its group are there.

        Args:
            events: In the order of time, each once.
        """
        known = tuple(events)
        logged_runs = any(event.kind is AsdKind.CHECKSUM_ON for event in known)
        config = replace(self.config, with_checksum=self.config.with_checksum and not logged_runs)
        count = _Counting(policy=replace(self, config=config))
        struck: set[tuple[Rank | None, LocalTime | None]] = set()
        for event in known:
            if event.kind is AsdKind.EVENT and event.time is not None:
                abnormal = Abnormal(
                    time=event.time, step=event.step, rank=event.rank, value=event.value, name=event.name
                )
                for noticed in count.take(abnormal):
                    if noticed.kind is EventKind.SDC_STRIKE:
                        struck.add((noticed.rank, noticed.time))
                    yield noticed
                continue
            if event.kind is AsdKind.CHECKSUM_OFF:
                count.forget()
            if event.kind is not AsdKind.STRIKE or (event.rank, event.time) not in struck:
                yield replace(_logged(event), since_time=self._group_since(event, known))
        yield from count.end()

    def _group_since(self, strike: AsdEvent, known: tuple[AsdEvent, ...]) -> LocalTime | None:
        """Return the first event of a logged strike's group: as it is listed, else the first one in its window."""
        listed = strike.group_since is not None or strike.group_since_step is not None
        if strike.kind is not AsdKind.STRIKE or listed or strike.time is None:
            return strike.group_since
        begin = strike.time - self.config.strikes_window * _MINUTE
        times = [
            event.time
            for event in known
            if event.kind is AsdKind.EVENT
            and event.time is not None
            and begin <= event.time <= strike.time
            and event.rank in {None, strike.rank}
        ]
        return min(times, default=None)


@dataclass(slots=True, kw_only=True)
class ValueTest:
    """What the detector remembers of one parameter.

    Source:
        `upper_thresh1` multiplies the debiased mean, although it is documented as an absolute value. A level that
        stays up is abnormal once. Values between the two thresholds enter nothing: a lasting one freezes the mean.
    """

    config: AsdConfig
    mean: float = 0.0
    """Moving, begun at 0 and not debiased."""
    accepted: int = 0
    previous: float = 0.0

    def abnormal(self, value: float) -> bool:
        """Take one value in and tell whether it is abnormal."""
        previous, self.previous = self.previous, value
        if value == 0:
            return False
        if not math.isfinite(value):
            return True
        alarm = accept = value
        if self.accepted >= _WARM_UP and self.mean != 0:
            debiased = self.mean / (1 - _KEEP**self.accepted)
            alarm, accept = debiased * self.config.upper_thresh1, debiased * self.config.upper_thresh2
        if value > alarm and abs(value - previous) > alarm:
            return True
        if value <= accept:
            self.accepted += 1
            self.mean = self.mean * _KEEP + value * (1 - _KEEP)
        return False


@dataclass(slots=True, kw_only=True)
class _Counting:
    """Strikes of every rank and the checksum that they share."""

    policy: FeaturePolicy
    rules: dict[Rank | None, StrikeRule] = field(default_factory=dict)
    checksum: ChecksumClock = field(init=False)

    def __post_init__(self) -> None:
        self.checksum = ChecksumClock(dialect=self.policy.dialect, config=self.policy.config)

    def take(self, abnormal: Abnormal) -> Iterator[HealthEvent]:
        yield from self._advance(abnormal.time)
        if abnormal.rank not in self.rules:
            self.rules[abnormal.rank] = strike_rule(self.policy.dialect, self.policy.config)
        # MindSpore looks for no strike while its checksum runs.
        blind = self.policy.dialect is AsdDialect.MINDSPORE and self.checksum.running(abnormal.time)
        for event in self.rules[abnormal.rank].take(abnormal):
            if event.kind is not EventKind.SDC_STRIKE:
                yield event
            elif not blind:
                yield event
                yield from self.checksum.strike(abnormal.time)

    def end(self) -> Iterator[HealthEvent]:
        return self._advance(None)

    def _advance(self, now: LocalTime | None) -> Iterator[HealthEvent]:
        for event in self.checksum.advance(now):
            if event.kind is EventKind.CHECKSUM_OFF:
                self.forget()
            yield event

    def forget(self) -> None:
        """Tell every rank that a checksum has ended."""
        for rule in self.rules.values():
            rule.forget()


def _logged(event: AsdEvent) -> HealthEvent:
    kind, message = _LOGGED[event.kind]
    return HealthEvent(
        kind=kind,
        step=event.step,
        time=event.time,
        rank=event.rank,
        since_step=event.group_since_step,
        message=message,
    )


def _time(text: str | None) -> LocalTime | None:
    try:
        return None if text is None else parse_local_time(text)
    except ValueError:  # a column of times may hold anything
        return None
