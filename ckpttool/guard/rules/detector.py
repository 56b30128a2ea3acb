"""Feature-value detection during training, with the rules of the replay of logs, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckpttool.core.domain.asd import TORCH_NPU, AsdDialect
from ckpttool.core.domain.finding import Code, Finding, Severity, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import Json, as_number, as_object
from ckpttool.health.asd.config import check_asd_config, config_in_force
from ckpttool.health.asd.features import FeaturePolicy, FeatureWatch
from ckpttool.health.model.asd import FeatureValue
from ckpttool.health.model.events import EventKind, HealthEvent

_LONG_AGO = LocalTime(0.0)
_LONGEST_SHOWN = 500


@dataclass(slots=True, kw_only=True)
class FeatureValueDetector:
    """The values and strikes of one rank, and the checksum that all ranks start in the same step.

    A strike alone starts nothing: `wants_checksum` is part of the ranks' next agreement, and its result is passed to
    `agree`.
    """

    watch: FeatureWatch
    findings: tuple[Finding, ...] = ()
    """Problems with the settings, to report once."""
    last: LocalTime = field(default=_LONG_AGO, init=False)
    """The latest time. It never goes back, even if the clock is set back."""
    checking: bool = field(default=False, init=False)
    """Whether all ranks check their matrix products."""

    @staticmethod
    def of(settings: str | None = None, dialect: AsdDialect = TORCH_NPU) -> FeatureValueDetector:
        """Return a detector without any history.

        Args:
            settings: The value of the environment variable of Ascend's detector. If None, its defaults, switched on.
            dialect: The grammar and the counting rule.

        Raises:
            UsageError: With these settings, the dialect's own parser would stop the training run.
        """
        if settings is None:
            return FeatureValueDetector(
                watch=FeaturePolicy(config=config_in_force(None, dialect), dialect=dialect).begin()
            )
        check = check_asd_config(settings, dialect)
        if check.error is not None:
            raise UsageError(f"feature values: {check.error}; ckpttool asd check shows all problems")
        findings = check.findings
        words = {item.replace("=", ":").replace(" ", "") for item in settings.split(",")}
        if settings.strip() and not check.config.enable and "enable:false" not in words:
            findings = (_nothing_detected(settings, findings, dialect),)
        return FeatureValueDetector(
            watch=FeaturePolicy(config=check.config, dialect=dialect).begin(), findings=findings
        )

    @property
    def is_on(self) -> bool:
        """Whether the settings switch it on. Otherwise it detects nothing."""
        return self.watch.policy.config.enable

    @property
    def sample_interval(self) -> int:
        """Interval of the checked parameters."""
        return self.watch.policy.config.grad_sample_interval

    @property
    def wants_checksum(self) -> bool:
        """Whether this rank has a strike and waits for the other ranks to start the checksum together."""
        return self.watch.book.checksum.running(self.last) and not self.checking

    def take(self, values: Iterable[FeatureValue], *, at: LocalTime, step: Step) -> tuple[GuardEvent, ...]:
        """Judge one step's values. Also call it in steps without values, because a checksum ends by the clock.

        Args:
            values: Values of this rank, or no values. Their own times are not checked.
            at: The current time.
            step: The current step, for events that the clock triggers. Other events have the step of their value.
        """
        self.last = LocalTime(max(self.last, at))
        if not self.is_on:
            return ()
        by_clock = list(self.watch.book.advance(self.last))
        if any(event.kind is EventKind.CHECKSUM_OFF for event in by_clock):
            self.checking = False
        events = [_encoded_event(event, step) for event in by_clock]
        for value in values:
            noticed = self.watch.take(replace(value, time=self.last))
            for event in noticed:
                events.append(_encoded_event(event, step, name=value.name))
                if event.kind is EventKind.SDC_EVENT:
                    events[-1].values.update(self._history(value))
        return tuple(events)

    def _history(self, value: FeatureValue) -> dict[str, EventValue]:
        """Return the values with which an abnormal value was compared. Neither mean nor count includes it."""
        history = self.watch.histories[value.rank, value.name]
        return {"previous": history.replaced, "average": history.mean, "normal_count": history.accepted}

    def agree(self, *, wanted: bool, step: Step) -> tuple[GuardEvent, ...]:
        """Start the checksum if any rank needs it, and return the resulting events on this rank.

        Args:
            wanted: Whether `wants_checksum` is true on any rank. The same value on all ranks.
            step: The current step.
        """
        if not wanted or self.checking:
            return ()
        clock = self.watch.book.checksum
        started = () if clock.running(self.last) else tuple(clock.start(self.last))
        self.checking = True
        return tuple(_encoded_event(event, step) for event in started)

    def saved(self) -> Json:
        """Return the complete state as JSON."""
        return {"watch": self.watch.saved(), "last": self.last}

    def restore(self, saved: Json, *, rank: Rank | None) -> None:
        """Restore the state of an instance with the same settings. A running checksum waits for the next agreement.

        Trainers that save only the memory of rank 0 restore it on all ranks. The usual values of a parameter are
        similar on every rank, so they are restored. The strikes of another rank are not restored.

        Args:
            saved: The output of `saved`.
            rank: The rank whose values follow, or None if unknown.

        Raises:
            ParseError: The value is not an output of `saved`.
        """
        record = as_object(saved)
        self.watch.restore(record.get("watch"))
        self.watch.histories = {(rank, name): history for (_, name), history in self.watch.histories.items()}
        self.watch.book.rules = {
            rule_name: rule for rule_name, rule in self.watch.book.rules.items() if rule_name == rank
        }
        self.last = LocalTime(as_number(record.get("last")))
        self.checking = False


def _nothing_detected(settings: str, findings: tuple[Finding, ...], dialect: AsdDialect) -> Finding:
    """Return one finding for all problems. Its last word is the setting, as `ckpttool asd check` reads it."""
    problems = "; ".join(finding.message for finding in findings if finding.severity is not Severity.NOTE)
    message = f"nothing is detected, add enable:true{f' ({problems})' if problems else ''}"
    return suspect(Code.CONFIG_DISAGREES, f"{message}: {dialect.variable}={settings[:_LONGEST_SHOWN]}")


def _encoded_event(event: HealthEvent, step: Step, *, name: str | None = None) -> GuardEvent:
    """Encode an event for a file. `clock` is in seconds since 1970 on this machine's own clock."""
    values: dict[str, EventValue] = {
        "rank": event.rank,
        "name": None if event.rank is None and event.value is None else name,  # a checksum belongs to no parameter
        "value": event.value,
        "count": event.count,
        "since_step": event.since_step,
        "since_clock": event.since_time,
        "clock": event.time,
        "message": event.message,
    }
    fields: dict[str, EventValue] = {key: value for key, value in values.items() if value is not None}
    at = step if event.step is None else event.step
    return GuardEvent(kind=GuardEventKind(event.kind.value), step=at, values=fields)
