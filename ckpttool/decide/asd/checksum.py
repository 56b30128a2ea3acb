"""When a strike starts a checksum of matrix products, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckpttool.domain.asd import AsdConfig, AsdDialect
from ckpttool.domain.health_events import EventKind, HealthEvent
from ckpttool.domain.metrics import MINUTE, LocalTime
from ckpttool.formats.strict_json import Json, as_object, get_optional_float


@dataclass(slots=True, kw_only=True)
class ChecksumClock:
    """The checksum runs of a whole training: a strike on any rank starts one on all.

    Source:
        torch_npu drops a strike within the cooldown, counted from the last start. MindSpore keeps it waiting until the
        cooldown is over.
    """

    dialect: AsdDialect
    config: AsdConfig
    started: LocalTime | None = None
    stops: LocalTime | None = None
    """When the run that is on ends."""
    waiting: LocalTime | None = None
    """When a strike that came too early gets its run."""

    def saved(self) -> Json:
        """Return everything that is remembered, as JSON."""
        return {"started": self.started, "stops": self.stops, "waiting": self.waiting}

    def restore(self, saved: Json) -> None:
        """Remember what `saved` told.

        Raises:
            ParseError: It is something else.
        """
        record = as_object(saved)
        times = (get_optional_float(record, key) for key in ("started", "stops", "waiting"))
        self.started, self.stops, self.waiting = (None if time is None else LocalTime(time) for time in times)

    def running(self, now: LocalTime) -> bool:
        """Whether a run is on."""
        return self.stops is not None and now < self.stops

    def advance(self, now: LocalTime | None) -> Iterator[HealthEvent]:
        """Yield what happens by itself up to `now`, or until nothing is left to happen."""
        while True:
            due = self.stops if self.stops is not None else self.waiting
            if due is None or (now is not None and due > now):
                return
            if self.stops is not None:
                self.stops = None
                yield _event(EventKind.CHECKSUM_OFF, due, "the checksum of matrix products ends")
            else:
                yield from self._start(due)

    def strike(self, now: LocalTime) -> Iterator[HealthEvent]:
        """Yield what a strike sets off."""
        if not self.config.with_checksum:
            return
        if self.running(now):
            yield _event(EventKind.CHECKSUM_DROPPED, now, "a checksum is running already: this strike starts none")
        elif self._allowed(now):
            yield from self._start(now)
        elif self.dialect.early_strike_waits and self.started is not None:
            self.waiting = LocalTime(self.started + self.config.checksum_cooldown * MINUTE)
        else:
            minutes = self.config.checksum_cooldown
            message = f"a checksum ran less than {minutes} minutes ago: this strike starts none"
            yield _event(EventKind.CHECKSUM_DROPPED, now, message)

    def _allowed(self, now: LocalTime) -> bool:
        if self.started is None:
            return True
        cooldown = self.config.checksum_cooldown * MINUTE
        waited = now - self.started - (self._minutes * MINUTE if self.dialect.pauses_from_stop else 0)
        return waited > cooldown if self.dialect.pauses_beyond else waited >= cooldown

    @property
    def _minutes(self) -> int:
        return self.config.cooldown if self.dialect.checksum_minutes is None else self.dialect.checksum_minutes

    def _start(self, now: LocalTime) -> Iterator[HealthEvent]:
        self.started = now
        self.waiting = None
        self.stops = LocalTime(now + self._minutes * MINUTE)
        message = f"the checksum of matrix products starts on all ranks, for {self._minutes} minutes"
        yield _event(EventKind.CHECKSUM_ON, now, message)


def _event(kind: EventKind, time: LocalTime, message: str) -> HealthEvent:
    return HealthEvent(kind=kind, time=time, message=message)
