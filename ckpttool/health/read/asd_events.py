"""Read the events that Ascend's online feature-value detectors log, in three dialects, and those of a guarded run."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.metrics import LocalTime, LogProblem, local_time_of
from ckpttool.core.domain.units import STEP_DIGITS, Rank, Step
from ckpttool.core.formats.strict_json import JsonObject, ParseError, as_number, get_optional_int
from ckpttool.core.logs.base import LogSource, lines, problem
from ckpttool.core.logs.guard_events import EventLine, event_lines, is_run
from ckpttool.core.logs.reading import open_log
from ckpttool.health.model.asd import AsdEvent, AsdKind

_SPIKE = (
    r"param name (?P<name>.*?), abnormal value (?P<value>\S+), previous value \S+, history avg \S+, "
    r"(?:bp time|step) (?P<backward>\d+), normal count \d+"
)
_AT = r"\(global step (?P<step>\d+)\)"
"""The step in a guard's lines; other detectors do not know the step."""
_STEP = rf"(?:.*?{_AT})?"
_SINCE = (
    rf"(?:.*?{_AT} \d+ abnormal values since (?P<since>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\(global step (?P<steps>\d+)\))?"
)
_STAMP = r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
_RANK = r"\[Rank (?P<rank>\d+|None)\]"
_HEAD_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[- ](\d\d:\d\d:\d\d)")

# First search for a word of these lines: most lines of a training log are about something else.
_PATTERNS: tuple[tuple[bytes, AsdKind, re.Pattern[str]], ...] = tuple(
    (needle, kind, re.compile(pattern))
    for needle, kind, pattern in (
        # torch_npu, and a guard
        (
            b"A grad-norm spike may happen",
            AsdKind.EVENT,
            rf"\[Event\]\[{_STAMP}\] {_RANK}: A grad-norm spike.*?{_SPIKE}{_STEP}",
        ),
        # "checksum is on" contains the sentence of a strike: a search for that sentence alone would count twice.
        (b"checksum is on", AsdKind.CHECKSUM_ON, rf"\[Info\] Rank (?P<rank>\d+): .*checksum is on{_STEP}"),
        (b"checksum is off", AsdKind.CHECKSUM_OFF, rf"\[Info\] Rank (?P<rank>\d+): checksum is off{_STEP}"),
        (
            b"detects abnormal results!",
            AsdKind.STRIKE,
            rf"\[Warning\]\[{_STAMP}\] {_RANK}: feature detection{_SINCE}",
        ),
        (
            b"Matmul checksum is abnormal",
            AsdKind.CHECKSUM_ABNORMAL,
            rf"\[Warning\]{_RANK}: The result of Matmul{_STEP}",
        ),
        # MindSpore
        (
            b"Silent detect strike detected",
            AsdKind.EVENT,
            r"StrikeRecord\{timestamp: \d+, name: (?P<name>.*?), value: (?P<value>\S+), stat:",
        ),
        (b"strikes out on rank", AsdKind.STRIKE, r"Feature value detection strikes out on rank (?P<rank>\d+)"),
        (b"detects MatMul error", AsdKind.CHECKSUM_ABNORMAL, r"CheckSum detects MatMul error on rank (?P<rank>\d+)"),
        # the monitor of a trainer, which reads the logs of the device
        (b"detect SDC at step", AsdKind.EVENT, r"SilentCheck detect SDC at step: (?P<step>\d+)"),
        (
            b"strikes and out on rank",
            AsdKind.STRIKE,
            r"SDC \d+ strikes and out on rank: (?P<rank>\d+)(?:, SilentCheck error steps: \[(?P<steps>[\d, ]*)\])?",
        ),
        (b"Start CheckSum at step", AsdKind.CHECKSUM_ON, r"Start CheckSum at step: (?P<step>\d+)"),
        (b"Stop CheckSum at step", AsdKind.CHECKSUM_OFF, r"Stop CheckSum at step: (?P<step>\d+)"),
        (b"CheckSum detects SDC", AsdKind.CHECKSUM_ABNORMAL, r"CheckSum detects SDC on rank (?P<rank>\d+)"),
        (b"silent_check_v3.cc", AsdKind.EVENT, r"^\[ERROR\].*silent_check_v3\.cc:.*SilentCheckV3"),
    )
)
_LONGEST_LINE = 16 * 1024
"""Maximum bytes of a line to search, because the patterns take quadratic time on a hostile line."""

_MEMBER = re.compile(rf"Grad-norm spike: index (?P<index>\d+), time {_STAMP}, {_SPIKE}")

_DETECTED = MappingProxyType(
    {
        GuardEventKind.SDC_EVENT: AsdKind.EVENT,
        GuardEventKind.SDC_ECHO: AsdKind.ECHO,
        GuardEventKind.SDC_STRIKE: AsdKind.STRIKE,
        GuardEventKind.CHECKSUM_ON: AsdKind.CHECKSUM_ON,
        GuardEventKind.CHECKSUM_OFF: AsdKind.CHECKSUM_OFF,
        GuardEventKind.CHECKSUM_DROPPED: AsdKind.CHECKSUM_DROPPED,
        GuardEventKind.CHECKSUM_ABNORMAL: AsdKind.CHECKSUM_ABNORMAL,
    }
)


def read_asd_events(source: LogSource) -> Iterator[AsdEvent | LogProblem]:
    """Yield the detectors' events, in the order of the log.

    The events that a strike lists are part of the strike, and `group_since` is the first. A line that resembles a
    detector's line and cannot be read is a problem.

    Source:
        torch_npu's times are whole seconds of the machine's clock, without a zone. "bp time" counts backward passes of
        one parameter, so with gradient accumulation it is not a step. MindSpore's time stamps count from 1970 UTC; only
        the clock at the beginning of its lines is comparable with the others.
    """
    items = lines(source)
    first = next(items, None)
    if first is None:
        return
    if not isinstance(first, LogProblem) and is_run(first[1]):
        yield from detections(source, chain([first], items))
        return
    strike: AsdEvent | None = None
    for item in chain([first], items):
        if isinstance(item, LogProblem):
            yield item
            continue
        number, text = item
        if strike is not None and b"Grad-norm spike: index" in text:
            strike = _with_member(strike, text)
            continue
        kind = next((index for index, pattern in enumerate(_PATTERNS) if pattern[0] in text), None)
        if kind is None:
            continue
        if strike is not None:
            yield strike
            strike = None
        event = _event(source, number, text, _PATTERNS[kind])
        if isinstance(event, AsdEvent) and event.kind is AsdKind.STRIKE:
            strike = event
        else:
            yield event
    if strike is not None:
        yield strike


def detections(source: LogSource, items: Iterable[tuple[int, bytes] | LogProblem]) -> Iterator[AsdEvent | LogProblem]:
    """Yield the events of a guard's detector as recorded: by step, without times.

    Args:
        source: The file.
        items: The lines of the file.
    """
    rank: Rank | None = None
    for item in event_lines(source, items):
        if isinstance(item, LogProblem):
            yield item
        elif isinstance(item, EventLine):
            event = item.event
            try:
                if event.kind is GuardEventKind.RUN:
                    rank = _rank(event.values)
                elif event.kind in _DETECTED:
                    yield _detection(source, item, rank)
            except ParseError as error:
                yield problem(source, item.number, f"{error.key} {error.problem}".strip(), b"")


def _detection(source: LogSource, line: EventLine, own_rank: Rank | None) -> AsdEvent:
    values, kind = line.event.values, _DETECTED[line.event.kind]
    rank, value = _rank(values), values.get("value")
    if rank is None and kind is AsdKind.CHECKSUM_ABNORMAL:  # the rank of a strike without a rank is unknown
        rank = own_rank
    since = get_optional_int(values, "since_step")
    text = partial(_text, values)
    return AsdEvent(
        kind=kind,
        rank=rank,
        name=text("name"),
        value=None if value is None else as_number(value),
        step=line.event.step,
        group_since_step=None if since is None else Step(since),
        message=text("message"),
        source=source.name,
        line=line.number,
    )


def _rank(values: JsonObject) -> Rank | None:
    rank = get_optional_int(values, "rank")
    return None if rank is None else Rank(rank)


def _text(values: JsonObject, key: str) -> str:
    """Return an optional text, or an empty text if it is not printable, because the file is untrusted."""
    value = values.get(key)
    return value if isinstance(value, str) and value.isprintable() else ""


def detector_events(names: Sequence[str]) -> tuple[tuple[AsdEvent, ...], tuple[LogProblem, ...]]:
    """Return the events of feature-value detectors, each once, in order of time; and the unreadable lines."""
    events: list[AsdEvent] = []
    problems: list[LogProblem] = []
    for name in names:
        try:
            with open_log(name) as stream:
                for item in read_asd_events(LogSource(name=name, stream=stream)):
                    if isinstance(item, LogProblem):
                        problems.append(item)
                    else:
                        events.append(item)
        except (OSError, EOFError, zlib.error) as error:
            problems.append(LogProblem(source=name, line=0, reason=f"cannot be read: {error}", text=""))
    return without_relayed(events), tuple(problems)


def without_relayed(events: Iterable[AsdEvent]) -> tuple[AsdEvent, ...]:
    """Return each event once, in order of time.

    Rank 0 repeats the other ranks' lines in its own log, so the logs of all ranks contain many events twice. An event
    without a time cannot be distinguished from a repetition, and is kept only if the line has new content.
    """
    first_by_key: dict[tuple[object, ...], AsdEvent] = {}
    for event in events:
        key = (event.kind, event.rank, event.time, event.step, event.name, event.backward)
        first_by_key.setdefault(key, event)
    return tuple(
        sorted(first_by_key.values(), key=lambda event: (event.time is None, event.time or 0.0, event.step or 0))
    )


def _event(
    source: LogSource, number: int, text: bytes, pattern: tuple[bytes, AsdKind, re.Pattern[str]]
) -> AsdEvent | LogProblem:
    line = text[:_LONGEST_LINE].decode("utf-8", "replace")
    match = pattern[2].search(line)
    if match is None:
        return problem(source, number, "a line of a detector in an unknown form", text)
    groups = match.groupdict()
    rank, step, backward = (_int(groups.get(key)) for key in ("rank", "step", "backward"))
    return AsdEvent(
        kind=pattern[1],
        time=_time(groups.get("time"), line),
        rank=None if rank is None else Rank(rank),
        name=groups.get("name") or "",
        value=_float(groups.get("value")),
        backward=backward,
        step=None if step is None else Step(step),
        group_since=local_time_of(groups.get("since")),
        group_since_step=min(map(Step, _ints(groups.get("steps") or "")), default=None),
        source=source.name,
        line=number,
    )


def _with_member(strike: AsdEvent, text: bytes) -> AsdEvent:
    match = _MEMBER.search(text[:_LONGEST_LINE].decode("utf-8", "replace"))
    if match is None:
        return strike
    time = _time(match["time"], "")
    earlier = [moment for moment in (strike.group_since, time) if moment is not None]
    return replace(strike, group_since=min(earlier, default=None))


def _time(stamp: str | None, line: str) -> LocalTime | None:
    """Return the time stamp, or else the clock at the head of the line (MindSpore: `2025-08-26-10:46:26.665.782`)."""
    if stamp is None:
        head = _HEAD_TIME.search(line)
        stamp = f"{head[1]} {head[2]}" if head else None
    return local_time_of(stamp)


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= STEP_DIGITS else None


def _ints(text: str) -> Iterator[int]:
    return (number for digits in re.findall(r"\d+", text) if (number := _int(digits)) is not None)


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
