"""Report on a training run from its events, with the next action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.guarding import EVENTS_FOLDER, EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.findings import Code
from ckpttool.core.formats.strict_json import ParseError, as_number
from ckpttool.guard.model.attribution import RecordedReplay
from ckpttool.guard.model.capture import CAPTURES_IN_A_ROW
from ckpttool.guard.model.guarding import SKIPS_TOO_OFTEN
from ckpttool.guard.model.report import CaptureTold, DroppedUpdate, FaultTold, GuardReport, RankReport
from ckpttool.guard.rules.attribution import SuspiciousSteps, causes
from ckpttool.guard.rules.nan_diagnosis import rows
from ckpttool.health.model.reading import LogReading
from ckpttool.trainers.findings import TrainersCode

MOST = 100
"""Maximum number of events of one kind to list. Others are only counted, because the files are not trusted."""

_MOST_CHARACTERS = 500
_MOST_CAPTURES = 3
"""Number of captures for which a command is suggested. By default, a run writes no more."""

_DROPS = frozenset({GuardEventKind.SKIP, GuardEventKind.SPIKE, GuardEventKind.NONFINITE})
_FORGOT = frozenset({GuardEventKind.BLIND, GuardEventKind.GUARD_RESET})
_OF_FEATURES = frozenset(
    row.value for row in (TrainersCode.CONFIG_KEY_IGNORED, TrainersCode.CONFIG_WRONG_TYPE, Code.CONFIG_DISAGREES)
)
"""Names of the alarms about settings of the detector of feature values: the codes of their findings."""
_ELSEWHERE = "another rank"
"""Beginning of the reason on a rank that drops because of other ranks."""


@dataclass(slots=True, kw_only=True)
class _OfRank:
    """The events of one rank so far."""

    counts: Counter[GuardEventKind] = field(default_factory=Counter)
    host: str = ""
    first_step: Step | None = None
    last_step: Step | None = None
    dropped: int = 0
    overflows: int = 0
    lost: int = 0
    last_save_failed: bool = False
    save_error: tuple[Step, str] | None = None
    """Step and error of the last save that failed."""
    stopped_at: Step | None = None
    switched_off: set[str] = field(default_factory=set)
    overhead: float = 0.0
    measured: int = 0

    def report(self, rank: Rank) -> RankReport:
        counts = self.counts
        return RankReport(
            rank=rank,
            host=self.host,
            starts=counts[GuardEventKind.RUN],
            first_step=self.first_step,
            last_step=self.last_step,
            steps=counts[GuardEventKind.STEP],
            applied=counts[GuardEventKind.STEP] - self.dropped - self.overflows,
            dropped=self.dropped,
            overflows=self.overflows,
            captures=counts[GuardEventKind.CAPTURE],
            capture_failures=counts[GuardEventKind.CAPTURE_FAILED],
            strikes=counts[GuardEventKind.SDC_STRIKE],
            abnormal_products=counts[GuardEventKind.CHECKSUM_ABNORMAL],
            disagreements=counts[GuardEventKind.REPLICAS_DISAGREE],
            saves=counts[GuardEventKind.SAVED],
            failed_saves=counts[GuardEventKind.SAVE_FAILED],
            last_save_failed=self.last_save_failed,
            save_error=None if self.save_error is None else f"step {self.save_error[0]}: {self.save_error[1]}",
            guard_errors=counts[GuardEventKind.GUARD_ERROR],
            switched_off=tuple(sorted(self.switched_off)),
            lost_lines=self.lost,
            overhead=self.overhead / self.measured if self.measured else None,
        )


class GuardTally:
    """Collector of the events of all ranks, file by file, in constant memory."""

    def __init__(self) -> None:
        self._ranks: dict[Rank, _OfRank] = {}
        self._rank: Rank | None = None
        self._captures_here: str | None = None
        self._world: int | None = None
        self._is_watching = False
        self._drops: dict[tuple[Step, GuardEventKind], DroppedUpdate] = {}
        self._captures: dict[str, CaptureTold] = {}
        self._faults: dict[GuardEventKind, dict[object, FaultTold]] = {
            GuardEventKind.SDC_STRIKE: {},
            GuardEventKind.CHECKSUM_ABNORMAL: {},
            GuardEventKind.REPLICAS_DISAGREE: {},
        }
        self._switched_on: dict[str, None] = {}
        self._alarms: dict[str, str] = {}  # names by their messages
        self._forgotten: dict[str, None] = {}
        self._errors: dict[tuple[Rank, str], str] = {}
        self._suspicious = SuspiciousSteps()
        self.capture_folders: set[str] = set()
        """The folders with the captures next to the files."""

    @property
    def captures(self) -> tuple[CaptureTold, ...]:
        """The captures so far."""
        return tuple(self._captures.values())

    @property
    def steps(self) -> int:
        """Number of lines with the numbers of a step."""
        return sum(rank.counts[GuardEventKind.STEP] for rank in self._ranks.values())

    def begin(self, captures: str | None = None) -> None:
        """Begin another file.

        Args:
            captures: The folder with the captures next to it. If None, captures are expected at the path in the events.
        """
        self._rank = None
        self._captures_here = captures
        if captures is not None:
            self.capture_folders.add(captures)

    def add(self, event: GuardEvent) -> None:
        """Add the next event of a file. Its first event is a `run` that identifies the file."""
        values = event.values
        if self._rank is None:
            self._rank = Rank(_integer(values, "rank") or 0)
        tally = self._ranks.setdefault(self._rank, _OfRank())
        if event.kind is GuardEventKind.RUN and values.get("rotated") is True:
            return
        tally.counts[event.kind] += 1
        tally.lost += _integer(values, "lost") or 0
        match event.kind:
            case GuardEventKind.RUN:
                tally.host, tally.stopped_at = _text(values, "host"), None
                if len(self._switched_on) < MOST:
                    self._switched_on.setdefault(_text(values, "switched_on") or "code")
                self._world = _integer(values, "world_size") or self._world
            case GuardEventKind.STEP:
                _step(tally, event)
            case GuardEventKind.STOP if values.get("stopped") is not False:
                tally.stopped_at = event.step
            case GuardEventKind.SAVED:
                tally.last_save_failed = False
            case GuardEventKind.SAVE_FAILED:
                tally.last_save_failed, tally.save_error = True, (event.step, _text(values, "message"))
            case GuardEventKind.GUARD_OFF:
                tally.switched_off |= {_text(values, "part")} if len(tally.switched_off) < MOST else set()
            case _:
                self._suspicious.add(event, self._rank, tally.host)
                self._remember(event, self._rank)

    def _remember(self, event: GuardEvent, rank: Rank) -> None:
        """Store an event that is to be listed."""
        values = event.values
        if event.kind in _DROPS:
            self._dropped(event)
        elif event.kind is GuardEventKind.CAPTURE:
            self._captured(event, rank)
        elif event.kind in self._faults:
            self._fault(event, rank)
        elif event.kind is GuardEventKind.ALARM and _text(values, "name") == CAPTURES_IN_A_ROW:
            pass  # the list of captures contains the complete series
        elif event.kind is GuardEventKind.ALARM and len(self._alarms) < MOST:
            self._alarms.setdefault(_text(values, "message"), _text(values, "name"))
        elif event.kind in _FORGOT and len(self._forgotten) < MOST:
            self._forgotten.setdefault(f"step {event.step}: {_text(values, 'message')}")
        elif event.kind is GuardEventKind.GUARD_ERROR and len(self._errors) < MOST:
            part = _text(values, "part")
            message = f"rank {rank}, step {event.step}, {part}: {_text(values, 'error')}"
            self._errors.setdefault((rank, part), message)

    def _dropped(self, event: GuardEvent) -> None:
        values, key = event.values, (event.step, event.kind)
        self._is_watching |= values.get("dropped") is False
        drop = self._drops.get(key)
        if drop is None and len(self._drops) == MOST:
            return
        dropping_ranks = values.get("ranks")
        ranks = {_rank(rank) for rank in dropping_ranks[:MOST]} if isinstance(dropping_ranks, list) else set()
        update = DroppedUpdate(
            step=event.step,
            kind=event.kind.value,
            norm=_number(values, "value"),
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
            message=_text(values, "message"),
        )
        # A rank with a reason comes before ranks that only drop with it.
        if drop is None or (drop.message.startswith(_ELSEWHERE) and not update.message.startswith(_ELSEWHERE)):
            self._drops[key] = replace(update, ranks=update.ranks or (() if drop is None else drop.ranks))

    def _captured(self, event: GuardEvent, rank: Rank) -> None:
        values, path = event.values, _text(event.values, "path")
        capture = self._captures.get(path)
        if capture is None:
            if len(self._captures) == MOST:
                return
            above, _, name = path.rpartition("/")
            here = path
            if self._captures_here is not None and name and f"/{above}".endswith(f"/{EVENTS_FOLDER}/captures"):
                here = f"{self._captures_here}/{name}"  # the files may have been moved since
            capture = CaptureTold(step=event.step, path=path, here=here, verdict=None, culprits=())
        verdict = capture.verdict or ("transient" if values.get("verdict") == "transient" else None)
        culprits = {rank} if values.get("culprit") is True else set()
        self._captures[path] = replace(capture, verdict=verdict, culprits=tuple(sorted({*capture.culprits, *culprits})))

    def _fault(self, event: GuardEvent, on_rank: Rank) -> None:
        values, faults = event.values, self._faults[event.kind]
        rank = _rank(values.get("rank"))
        if event.kind is GuardEventKind.CHECKSUM_ABNORMAL and rank is None:
            rank = on_rank
        since = _integer(values, "since_step")
        key = (event.step, None if event.kind is GuardEventKind.REPLICAS_DISAGREE else rank)
        if len(faults) < MOST:
            fault = FaultTold(
                step=event.step,
                rank=rank,
                since_step=None if since is None else Step(since),
                message=_text(values, "message") or _place(values),
            )
            faults.setdefault(key, fault)

    def report(
        self, reading: LogReading, *, replays: Mapping[str, Sequence[RecordedReplay]] = MappingProxyType({})
    ) -> GuardReport:
        """Return the report on all events, with the next action.

        Args:
            reading: The files that were read, and their unreadable lines.
            replays: The recorded replays of each capture, by its path in the events.
        """
        strikes, abnormal, disagreements = (
            tuple(sorted(faults.values(), key=lambda fault: (fault.step, fault.rank or 0)))
            for faults in self._faults.values()
        )
        stops = [tally.stopped_at for tally in self._ranks.values() if tally.stopped_at is not None]
        captures = tuple(sorted(self._captures.values(), key=lambda capture: (capture.step, capture.path)))
        # A guard that acts drops each such update, so no update happens between two neighbouring captured steps.
        columns = [
            (capture.step, None if self._is_watching else capture.culprits, capture.path) for capture in captures
        ]
        hosts = {rank: tally.host for rank, tally in self._ranks.items()}
        attributions = self._suspicious.attributions(replays, world_size=self._world, hosts=hosts)
        report = GuardReport(
            ranks=tuple(self._ranks[rank].report(rank) for rank in sorted(self._ranks)),
            world_size=self._world,
            is_watching=self._is_watching,
            switched_on=tuple(self._switched_on),
            stopped_at=max(stops, default=None),
            drops=tuple(sorted(self._drops.values(), key=lambda update: (update.step, update.kind))),
            captures=captures,
            in_a_row=rows(columns),
            strikes=strikes,
            abnormal_products=abnormal,
            disagreements=disagreements,
            alarms=tuple(self._alarms),
            forgotten=tuple(self._forgotten),
            errors=tuple(self._errors.values()),
            attributions=attributions,
            causes=causes(attributions),
            next=(),
            reading=reading,
        )
        return replace(report, next=tuple(_next(report, {*self._alarms.values()})))


def _step(tally: _OfRank, event: GuardEvent) -> None:
    values = event.values
    tally.first_step = event.step if tally.first_step is None else tally.first_step
    tally.last_step = event.step
    tally.stopped_at = None
    if values.get("overflow") is True:
        tally.overflows += 1
    elif values.get("skipped") is True:
        tally.dropped += 1
    share = _number(values, "overhead")
    if share is not None:
        tally.overhead += share
        tally.measured += 1


def _next(report: GuardReport, alarms: AbstractSet[str]) -> list[tuple[str, ...]]:
    """Return suggested commands as lists of words, the most urgent first.

    Args:
        report: The events.
        alarms: The names of the alarms.
    """
    source = report.reading.sources[0] if report.reading.sources else ""
    folder = source.rpartition("/")[0]
    output, _, last = folder.rpartition("/")
    in_place = last == EVENTS_FOLDER
    where = ((output or "."),) if in_place else ()
    events = (folder,) if in_place else report.reading.sources
    commands: list[tuple[str, ...]] = []
    if report.strikes or report.abnormal_products:
        commands.append(
            ("ckpttool", "resolve", *where, *(argument for name in events for argument in ("--spikes-from", name)))
        )
    if report.stopped_at is not None:
        commands.append(("ckpttool", "resolve", *where, "--around-spike", "last"))
    later = {step for row in report.in_a_row for step in row.later}
    worth = [capture for capture in report.captures if capture.step not in later]
    for capture in worth[:_MOST_CAPTURES]:
        # It comes from a file and will be typed: no command may interpret it as an option.
        path = f"./{capture.here}" if capture.here.startswith("-") else capture.here
        commands.append(("ckpttool", "guard", "inspect", path))
    # A threshold has no part in dropped updates that are not finite.
    if SKIPS_TOO_OFTEN in alarms and any(drop.kind != GuardEventKind.NONFINITE.value for drop in report.drops):
        commands.append(("ckpttool", "log", "calibrate", *events))
    if alarms & _OF_FEATURES:
        commands.append(("ckpttool", "guide", "asd"))
    if alarms - _OF_FEATURES - {SKIPS_TOO_OFTEN}:
        commands.append(("ckpttool", "guide", "guard"))
    return commands


def _text(values: Mapping[str, EventValue], key: str) -> str:
    value = values.get(key)
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def _integer(values: Mapping[str, EventValue], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _rank(value: EventValue) -> Rank | None:
    number = _integer({"rank": value}, "rank")
    return None if number is None else Rank(number)


def _number(values: Mapping[str, EventValue], key: str) -> float | None:
    try:
        return as_number(values.get(key))
    except ParseError:
        return None


def _place(values: Mapping[str, EventValue]) -> str:
    """Describe the place of a wrong product and the reaction, as far as the event shows them."""
    facts = ((key, values.get(key)) for key in ("op", "module", "phase", "host", "device", "row", "column", "fault"))
    parts = [f"{key} {value}"[:_MOST_CHARACTERS] for key, value in facts if isinstance(value, (str, int))]
    return ", ".join([*parts, "healed"] if values.get("healed") is True else parts)
