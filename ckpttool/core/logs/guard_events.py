"""Event files of guarded training runs: one log per rank, with the detector's events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EVENTS_FOLDER, EVENTS_SCHEMA, GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, NoteKind
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import (
    Json,
    ParseError,
    get_int,
    get_str,
    parse_object,
)
from ckpttool.core.logs.base import LogSource, RankLogs, lines, problem
from ckpttool.core.logs.fields import ALIASES, Row, steps_of
from ckpttool.core.storage import above, open_storage

_FILE = re.compile(r"events-(?P<rank>\d{5,})\.jsonl(?P<aside>\.1)?")
_KINDS = {kind.value: kind for kind in GuardEventKind}
_DROPS = frozenset({GuardEventKind.SKIP, GuardEventKind.SPIKE, GuardEventKind.NONFINITE})


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One line of an event file."""

    number: int
    """Counted from 1."""
    event: GuardEvent


class GuardEvents:
    """Event files of one rank, from any number of consecutive processes."""

    name = "guard-events"

    def recognise(self, head: bytes) -> bool:
        """Return whether a log is an event file, by the line that every process writes when it starts."""
        return is_run(head.lstrip().split(b"\n", 1)[0])

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield a step for each executed step, dropped or not, and notes for resumes and stops."""
        return steps_of(source, _rows(source))


def is_run(line: bytes) -> bool:
    """Return whether a line is the first line of a process."""
    try:
        return parse_object(line, where="")["schema"] == EVENTS_SCHEMA
    except (ParseError, KeyError):
        return False


def event_lines(
    source: LogSource, items: Iterable[tuple[int, bytes] | LogProblem] | None = None
) -> Iterator[EventLine | LogProblem | LogNote]:
    """Yield every event, in the order of the file and in bounded memory.

    An incomplete line at the end of the file, or before another process began, means that the writer was killed, and is
    only a note. Any other unreadable line is a problem. Unknown kinds of events, from a later version of ckpttool, are
    skipped.

    Args:
        source: The file.
        items: The lines of the file, if some were already read.
    """
    torn: LogProblem | None = None
    for item in lines(source) if items is None else items:
        event = item if isinstance(item, LogProblem) else _parsed(source, *item)
        if torn is not None:
            is_new = isinstance(event, EventLine) and event.event.kind is GuardEventKind.RUN
            yield _cut(torn) if is_new else torn
            torn = None
        if isinstance(event, LogProblem) and event is not item:
            torn = event
        elif event is not None:
            yield event
    if torn is not None:
        yield _cut(torn)


def _cut(torn: LogProblem) -> LogNote:
    return LogNote(kind=NoteKind.CUT, source=torn.source, line=torn.line, step=None)


def _parsed(source: LogSource, number: int, text: bytes) -> EventLine | LogProblem | None:
    if not text.strip():
        return None
    try:
        values = parse_object(text, where="")
        kind, step = _KINDS.get(get_str(values, "kind")), get_int(values, "step")
    except ParseError as error:
        return problem(source, number, f"{error.key} {error.problem}".strip(), text)
    if values.get("schema", EVENTS_SCHEMA) != EVENTS_SCHEMA:
        return problem(
            source, number, "another version of ckpttool wrote the following lines: their meaning is unknown", text
        )
    if kind is None:
        return None
    return EventLine(number=number, event=GuardEvent(kind=kind, step=Step(step), values=values))


def _rows(source: LogSource) -> Iterator[Row | LogProblem | LogNote | None]:
    for item in event_lines(source):
        if not isinstance(item, EventLine):
            yield item
            continue
        event, values = item.event, item.event.values
        if event.kind is GuardEventKind.STEP:
            row = {field: values[field] for field in ALIASES if field in values}
            if values.get("overflow") is True:  # the loss scaler then drops the update, even if the guard only watches
                row["skipped"] = True
            yield item.number, {field: _text(value) for field, value in row.items()}
        elif event.kind in _DROPS and values.get("dropped") is True:
            row = {"step": event.step, "global_norm": values.get("value"), "skipped": True}
            yield item.number, {field: _text(value) for field, value in row.items()}
        elif event.kind is GuardEventKind.STOP and values.get("stopped") is not False:
            count = values.get("count")
            count = count if isinstance(count, int) and not isinstance(count, bool) else None
            kind = NoteKind.COUNT_STOP
            yield LogNote(kind=kind, source=source.name, line=item.number, step=event.step, count=count)
        elif event.kind is GuardEventKind.RUN and values.get("rotated") is not True:
            yield None


def _text(value: Json) -> str:
    return "" if value is None else str(value)


class GuardFiles:
    """Location of event files: `guard/events-NNNNN.jsonl` in the output folder, and their rotated `.1` files."""

    names = (f"{EVENTS_FOLDER}/events-N.jsonl",)

    def near(self, root: str) -> tuple[RankLogs, ...]:
        """Search the checkpoint folder, in which some trainers also write their other output, and its parent."""
        return next((files for folder in (root, above(root)) if (files := _in(f"{folder}/{EVENTS_FOLDER}"))), ())

    def inside(self, folder: str) -> tuple[str, ...]:
        """Search a folder that the user named: the output folder, or its `guard/` folder."""
        files = _in(folder) or _in(f"{folder}/{EVENTS_FOLDER}")
        return tuple(path for logs in files for path in logs)


def _in(folder: str) -> tuple[RankLogs, ...]:
    ranks: dict[int, list[tuple[bool, str]]] = {}
    with suppress(OSError):  # the folder is optional and usually absent
        for entry in open_storage(folder).entries(""):
            if match := _FILE.fullmatch(entry.name):
                ranks.setdefault(int(match["rank"]), []).append((match["aside"] is None, f"{folder}/{entry.name}"))
    return tuple(tuple(path for _, path in sorted(ranks[rank])) for rank in sorted(ranks))
