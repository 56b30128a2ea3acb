"""How each implementation counts abnormal values: cooldown, strikes, and the checksum runs that strikes start."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ckpttool.core.domain.asd import AsdDialect, StrikeCount
from ckpttool.core.domain.metrics import MINUTE, LocalTime, show_local_time
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.formats.strict_json import (
    Json,
    as_list,
    as_number,
    as_object,
    get_bool,
    get_list,
    get_object,
    get_optional_float,
    get_optional_int,
    get_str,
    number,
)
from ckpttool.health.model.asd import AsdConfig
from ckpttool.health.model.events import EventKind, HealthEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Abnormal:
    """One abnormal value on one rank."""

    time: LocalTime
    step: Step | None = None
    rank: Rank | None = None
    value: float | None = None
    name: str = ""

    def saved(self) -> Json:
        """Encode the value as JSON."""
        return {
            "time": self.time,
            "step": self.step,
            "rank": self.rank,
            "value": number(self.value),
            "name": self.name,
        }

    @staticmethod
    def restored(saved: Json) -> Abnormal:
        """Decode the output of `saved`.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        record = as_object(saved)
        step, rank = get_optional_int(record, "step", minimum=None), get_optional_int(record, "rank")
        value = record.get("value")
        return Abnormal(
            time=LocalTime(as_number(record.get("time"))),
            step=None if step is None else Step(step),
            rank=None if rank is None else Rank(rank),
            value=None if value is None else as_number(value),
            name=get_str(record, "name"),
        )


class StrikeRule(Protocol):
    """The counting rule of one implementation.

    Each rank has its own object, because ranks do not share their history.
    """

    def take(self, abnormal: Abnormal) -> Iterator[HealthEvent]:
        """Yield the log entries for one abnormal value, in order of time."""
        ...

    def forget(self) -> None:
        """Handle the end of a checksum."""
        ...

    def saved(self) -> Json:
        """Return the complete state, as JSON."""
        ...

    def restore(self, saved: Json) -> None:
        """Restore a state from the output of `saved`.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        ...


def strike_rule(dialect: AsdDialect, config: AsdConfig) -> StrikeRule:
    """Return a fresh rule for one rank."""
    return _RULES[dialect.counts](config=config)


@dataclass(slots=True, kw_only=True)
class _Remembered:
    abnormal: Abnormal
    counted: bool = True
    struck: bool = False

    @property
    def time(self) -> LocalTime:
        return self.abnormal.time


@dataclass(slots=True, kw_only=True)
class _ByHistory:
    """The rule of torch_npu 7.1 and later.

    Source:
        Runs of the real code. Suppressed values stay in the history, but do not count. The newest counted value takes
        part in the next strike even if it was part of one before; so if two values make a strike-out, every event after
        the first strike is a strike.
    """

    config: AsdConfig
    history: list[_Remembered] = field(default_factory=list)

    def take(self, abnormal: Abnormal) -> Iterator[HealthEvent]:
        new = _Remembered(abnormal=abnormal)
        if not self.history:
            yield _counted(abnormal)
            if self.config.strikes_num == 1:
                yield self._strike(new, [])
            self.history.append(new)
            return
        newest = next((index for index in reversed(range(len(self.history))) if self.history[index].counted), None)
        # If only suppressed values remain in the window, the new one counts and nothing is logged.
        if newest is not None:
            if abnormal.time - self.history[newest].time < self.config.cooldown * MINUTE:
                new.counted = False
                yield _echo(abnormal, self.history[newest].time)
            else:
                yield _counted(abnormal)
                yield from self._strike_out(new, newest)
        self.history.append(new)
        self._expire(abnormal.time)

    def forget(self) -> None:
        """Do nothing: the history outlives a checksum."""

    def saved(self) -> Json:
        return [
            {"abnormal": old.abnormal.saved(), "counted": old.counted, "struck": old.struck} for old in self.history
        ]

    def restore(self, saved: Json) -> None:
        self.history = [
            _Remembered(
                abnormal=Abnormal.restored(get_object(record, "abnormal")),
                counted=get_bool(record, "counted"),
                struck=get_bool(record, "struck"),
            )
            for record in map(as_object, as_list(saved))
        ]

    def _strike_out(self, new: _Remembered, newest: int) -> Iterator[HealthEvent]:
        needed = self.config.strikes_num - 1
        if needed == 0:
            yield self._strike(new, [])
            return
        collected = [self.history[newest]]
        examined = self.history[newest]
        for old in reversed(self.history[:newest]):
            examined = old
            if old.counted and not old.struck:
                collected.append(old)
            if len(collected) == needed:
                break
        if len(collected) == needed and new.time - examined.time <= self.config.strikes_window * MINUTE:
            yield self._strike(new, collected)

    def _strike(self, new: _Remembered, collected: list[_Remembered]) -> HealthEvent:
        for taken in (new, *collected):
            taken.struck = True
        return _strike(new.abnormal, [old.abnormal for old in collected])

    def _expire(self, now: LocalTime) -> None:
        while self.history and now - self.history[0].time > self.config.strikes_window * MINUTE:
            del self.history[0]


@dataclass(slots=True, kw_only=True)
class _ByWindow:
    """The rule of MindSpore 2.7.1 and later.

    Source:
        The code. Old events are dropped only while there are more than a strike-out needs, so with exactly as many the
        window does not apply. It checks for a strike-out only if its checksum is on; here the strike is always
        reported, because the evidence is the same.
    """

    config: AsdConfig
    previous: LocalTime | None = None
    strikes: deque[Abnormal] = field(default_factory=deque)

    def take(self, abnormal: Abnormal) -> Iterator[HealthEvent]:
        if self.previous is not None and abnormal.time <= self.previous + self.config.cooldown * MINUTE:
            yield _echo(abnormal, self.previous)
            return
        self.previous = abnormal.time
        yield _counted(abnormal)
        self.strikes.append(abnormal)
        window = self.config.strikes_window * MINUTE
        while len(self.strikes) > self.config.strikes_num and abnormal.time - self.strikes[0].time > window:
            self.strikes.popleft()
        if len(self.strikes) >= self.config.strikes_num:
            yield _strike(abnormal, list(self.strikes)[:-1])

    def forget(self) -> None:
        self.strikes.clear()

    def saved(self) -> Json:
        return {"previous": self.previous, "strikes": [strike.saved() for strike in self.strikes]}

    def restore(self, saved: Json) -> None:
        record = as_object(saved)
        previous = get_optional_float(record, "previous")
        self.previous = None if previous is None else LocalTime(previous)
        self.strikes = deque(map(Abnormal.restored, get_list(record, "strikes")))


@dataclass(slots=True, kw_only=True)
class _BySteps:
    """The rule of a monitor that reads the device's log.

    It has no cooldown, counts the values of one step once, and its expiry is strict.
    """

    config: AsdConfig
    errors: deque[Abnormal] = field(default_factory=deque)

    def take(self, abnormal: Abnormal) -> Iterator[HealthEvent]:
        last = self.errors[-1] if self.errors else None
        if last is not None and last.step is not None and last.step == abnormal.step:
            yield _echo(abnormal, last.time)
            return
        yield _counted(abnormal)
        self.errors.append(abnormal)
        while abnormal.time - self.errors[0].time > self.config.strikes_window * MINUTE:
            self.errors.popleft()
        if len(self.errors) >= self.config.strikes_num:
            yield _strike(abnormal, list(self.errors)[:-1])

    def forget(self) -> None:
        self.errors.clear()

    def saved(self) -> Json:
        return [error.saved() for error in self.errors]

    def restore(self, saved: Json) -> None:
        self.errors = deque(map(Abnormal.restored, as_list(saved)))


_RULES: dict[StrikeCount, Callable[..., StrikeRule]] = {
    StrikeCount.HISTORY: _ByHistory,
    StrikeCount.WINDOW: _ByWindow,
    StrikeCount.STEPS: _BySteps,
}


def _counted(abnormal: Abnormal) -> HealthEvent:
    return _event(EventKind.SDC_EVENT, abnormal, "an abnormal feature value; alone it means nothing")


def _echo(abnormal: Abnormal, counted: LocalTime) -> HealthEvent:
    message = f"an abnormal feature value, counted as an echo of the one at {show_local_time(counted)}"
    return _event(EventKind.SDC_ECHO, abnormal, message)


def _strike(abnormal: Abnormal, batch: list[Abnormal]) -> HealthEvent:
    first = min((abnormal, *batch), key=lambda event: event.time)
    message = f"{len(batch) + 1} abnormal feature values since {show_local_time(first.time)}: a strike"
    return HealthEvent(
        kind=EventKind.SDC_STRIKE,
        step=abnormal.step,
        time=abnormal.time,
        rank=abnormal.rank,
        value=abnormal.value,
        count=len(batch) + 1,
        since_step=first.step,
        since_time=first.time,
        message=message,
    )


def _event(kind: EventKind, abnormal: Abnormal, message: str) -> HealthEvent:
    return HealthEvent(
        kind=kind,
        step=abnormal.step,
        time=abnormal.time,
        rank=abnormal.rank,
        value=abnormal.value,
        message=message,
    )


@dataclass(slots=True, kw_only=True)
class ChecksumClock:
    """The checksum runs of a training run: a strike on any rank starts one on all ranks.

    Source:
        torch_npu drops a strike within the cooldown, counted from the last start. MindSpore postpones it until the end
        of the cooldown.
    """

    dialect: AsdDialect
    config: AsdConfig
    started: LocalTime | None = None
    stops: LocalTime | None = None
    """End of the current run."""
    waiting: LocalTime | None = None
    """Start of the postponed run for a strike during the cooldown."""

    def saved(self) -> Json:
        """Return the complete state, as JSON."""
        return {"started": self.started, "stops": self.stops, "waiting": self.waiting}

    def restore(self, saved: Json) -> None:
        """Restore a state from the output of `saved`.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        record = as_object(saved)
        times = (get_optional_float(record, key) for key in ("started", "stops", "waiting"))
        self.started, self.stops, self.waiting = (None if time is None else LocalTime(time) for time in times)

    def running(self, now: LocalTime) -> bool:
        """Return whether a run is active."""
        return self.stops is not None and now < self.stops

    def advance(self, now: LocalTime | None) -> Iterator[HealthEvent]:
        """Yield the events that occur without a further strike, up to `now` or until no events remain."""
        while True:
            due = self.stops if self.stops is not None else self.waiting
            if due is None or (now is not None and due > now):
                return
            if self.stops is not None:
                self.stops = None
                yield HealthEvent(kind=EventKind.CHECKSUM_OFF, time=due, message="the checksum of matrix products ends")
            else:
                yield from self.start(due)

    def strike(self, now: LocalTime) -> Iterator[HealthEvent]:
        """Yield the events after a strike."""
        if not self.config.with_checksum:
            return
        if self.running(now):
            yield HealthEvent(
                kind=EventKind.CHECKSUM_DROPPED,
                time=now,
                message="a checksum is already running: this strike does not start one",
            )
        elif self._allowed(now):
            yield from self.start(now)
        elif self.dialect.early_strike_waits and self.started is not None:
            self.waiting = LocalTime(self.started + self.config.checksum_cooldown * MINUTE)
        else:
            minutes = self.config.checksum_cooldown
            message = f"a checksum ran less than {minutes} minutes ago: this strike does not start one"
            yield HealthEvent(kind=EventKind.CHECKSUM_DROPPED, time=now, message=message)

    def _allowed(self, now: LocalTime) -> bool:
        if self.started is None:
            return True
        cooldown = self.config.checksum_cooldown * MINUTE
        waited = now - self.started - (self._minutes * MINUTE if self.dialect.pauses_from_stop else 0)
        return waited > cooldown if self.dialect.pauses_beyond else waited >= cooldown

    @property
    def _minutes(self) -> int:
        return self.config.cooldown if self.dialect.checksum_minutes is None else self.dialect.checksum_minutes

    def start(self, now: LocalTime) -> Iterator[HealthEvent]:
        """Start a run, regardless of earlier runs."""
        self.started = now
        self.waiting = None
        self.stops = LocalTime(now + self._minutes * MINUTE)
        message = f"the checksum of matrix products starts on all ranks, for {self._minutes} minutes"
        yield HealthEvent(kind=EventKind.CHECKSUM_ON, time=now, message=message)
