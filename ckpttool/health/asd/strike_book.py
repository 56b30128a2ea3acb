"""The events that follow an abnormal value: the strikes of every rank, and the checksum runs that all ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ckpttool.core.domain.asd import AsdDialect
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.strict_json import Json, JsonObject, as_object, get_list, get_optional_int
from ckpttool.health.asd.strikes import Abnormal, ChecksumClock, StrikeRule, strike_rule
from ckpttool.health.model.asd import AsdConfig
from ckpttool.health.model.events import EventKind, HealthEvent


@dataclass(slots=True, kw_only=True)
class StrikeBook:
    """The counts of abnormal values by rank, and the times at which checksums run."""

    dialect: AsdDialect
    config: AsdConfig
    rules: dict[Rank | None, StrikeRule] = field(default_factory=dict)
    checksum: ChecksumClock = field(init=False)

    def __post_init__(self) -> None:
        self.checksum = ChecksumClock(dialect=self.dialect, config=self.config)

    def count(self, abnormal: Abnormal) -> Iterator[HealthEvent]:
        """Yield the events that an abnormal value triggers: the anomaly, and any strike or checksum."""
        yield from self.advance(abnormal.time)
        blind = self.dialect.blind_in_checksum and self.checksum.running(abnormal.time)
        for event in self._rule(abnormal.rank).take(abnormal):
            if event.kind is not EventKind.SDC_STRIKE:
                yield event
            elif not blind:
                yield event
                yield from self.checksum.strike(abnormal.time)

    def advance(self, now: LocalTime | None) -> Iterator[HealthEvent]:
        """Yield the events that a running or waiting checksum causes on its own, up to `now` or its end."""
        for event in self.checksum.advance(now):
            if event.kind is EventKind.CHECKSUM_OFF:
                self.forget()
            yield event

    def forget(self) -> None:
        """Notify every rank that a checksum has ended."""
        for rule in self.rules.values():
            rule.forget()

    def _rule(self, rank: Rank | None) -> StrikeRule:
        if rank not in self.rules:
            self.rules[rank] = strike_rule(self.dialect, self.config)
        return self.rules[rank]

    def saved(self) -> JsonObject:
        """Return the complete state, as JSON."""
        return {
            "rules": [{"rank": rank, "rule": rule.saved()} for rank, rule in self.rules.items()],
            "checksum": self.checksum.saved(),
        }

    def restore(self, saved: Json) -> None:
        """Restore a state from the output of `saved`.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        record = as_object(saved)
        self.rules.clear()
        for rule in map(as_object, get_list(record, "rules")):
            self._rule(saved_rank(rule)).restore(rule.get("rule"))
        self.checksum.restore(record.get("checksum"))


def saved_rank(record: JsonObject) -> Rank | None:
    """Return the rank of an entry, or None if it is unknown."""
    rank = get_optional_int(record, "rank")
    return None if rank is None else Rank(rank)
