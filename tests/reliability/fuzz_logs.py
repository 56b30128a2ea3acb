"""Fuzz targets: training logs of every dialect, and what detectors wrote into them."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, StepMetrics
from ckpttool.core.domain.question import STDIN
from ckpttool.core.errors import UsageError
from ckpttool.core.logs.base import EXCERPT_CHARS, LogFormat, LogSource, UnreadableError, number
from ckpttool.core.logs.columns import Csv, JsonLines
from ckpttool.core.logs.fields import ALIASES, parse_columns
from ckpttool.core.logs.guard_events import EventLine, GuardEvents, event_lines
from ckpttool.core.logs.merge import merge
from ckpttool.core.logs.tensorboard import TensorBoard
from ckpttool.guard.answers.report import prometheus
from ckpttool.guard.rules.report import MOST, GuardTally
from ckpttool.health.model.asd import AsdEvent
from ckpttool.health.model.reading import LogReading
from ckpttool.health.read.asd_events import read_asd_events, without_relayed
from ckpttool.trainers.huggingface.log import HfPrinted, HfTrainer
from ckpttool.trainers.megatron.log import Megatron
from ckpttool.trainers.mindformers.logs.text import MindFormers
from ckpttool.trainers.registry import log_reader
from tests.core.logs.reading import Dribble
from tests.reliability.fuzz_records import assert_short
from tests.support.json_schemas import problems_of

_LEAST_RECORD = 16
"""Bytes of a record of an event file, which counts as a line: length, event and two checksums."""

LONGEST_REASON = 2000
LONGEST_MESSAGE = 20_000
"""Characters: it may name all columns of a table."""

_ESCAPED_CHARS = 10 * EXCERPT_CHARS
"""`\\U0001f600` for one."""


def any_log(data: bytes) -> None:
    """Read a log of whatever kind it is, gzipped or not, and put it together with itself."""
    try:
        items = list(log_reader().read(STDIN, stdin=io.BytesIO(data)))
    except UsageError:
        return
    _assert_sane(items, data)
    once, twice = (merge([("log", items)] * times) for times in (1, 2))
    assert [one.step for one in once.metrics] == sorted({one.step for one in once.metrics})
    assert [one.step for one in twice.metrics] == [one.step for one in once.metrics]
    assert once.problem_count == sum(isinstance(item, LogProblem) for item in items)


class _Lines:
    """A pipe that gives a line at a time, as where the training is still writing."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._stream.readline(size)


def of(log_format: LogFormat, *, by_line: bool) -> Callable[[bytes], None]:
    """Return the target that reads a log of one kind, from a file and from pipes that give less at a time.

    Args:
        log_format: The reader.
        by_line: Whether it counts lines as we do, so that where a carriage return stands alone, blocks may differ.
    """

    def read(data: bytes) -> None:
        log_format.recognise(data)
        whole = _items(log_format, LogSource(name="log", stream=io.BytesIO(data)))
        _assert_sane(whole or (), data)
        if isinstance(log_format, MindFormers | Megatron):
            times = (item.time for item in whole or () if isinstance(item, StepMetrics) and item.time is not None)
            assert all(map(_TIME.fullmatch, times))
        for stream in (Dribble(data, 7 + len(data) % 97), _Lines(data)):
            parts = _items(log_format, LogSource(name="log", stream=stream))
            if not by_line or b"\r" not in data:
                assert _spelled(parts, data) == _spelled(whole, data)

    return read


_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_TWO_TIMES = re.compile(rb"\d\d:\d\d:\d\d[^\n]*\d\d:\d\d:\d\d")


def _spelled(items: list[LogItem] | None, data: bytes) -> str:
    """Spell items as text, for not-a-number is not equal to itself.

    Where lines were glued together, which of their times counts is not promised.
    """
    if _TWO_TIMES.search(data):
        items = [replace(item, time=None) if isinstance(item, StepMetrics) else item for item in items or ()]
    return repr(items)


def _items(log_format: LogFormat, source: LogSource) -> list[LogItem] | None:
    try:
        return list(log_format.read(source))
    except UsageError as error:
        assert_short(error, LONGEST_MESSAGE)
        return None


def _assert_sane(items: Iterable[LogItem], data: bytes) -> None:
    last = max(len(data.splitlines()), len(data) // _LEAST_RECORD) + 1
    for item in items:
        if isinstance(item, StepMetrics):
            assert item.step >= 0
            assert item.time is None or len(item.time) <= len(data)
        elif isinstance(item, LogProblem):
            assert 0 <= item.line <= last
            assert 0 < len(item.reason) <= LONGEST_REASON
            assert item.text.isprintable()
            assert len(item.text) <= _ESCAPED_CHARS
        else:
            assert isinstance(item, LogNote)
            assert 0 <= item.line <= last


def asd_events(data: bytes) -> None:
    """Read what detectors logged, from a file and from a pipe."""
    whole = list(read_asd_events(LogSource(name="log", stream=io.BytesIO(data))))
    last = len(data.splitlines()) + 1
    for item in whole:
        assert 1 <= item.line <= last
        if isinstance(item, AsdEvent):
            assert min(item.rank or 0, item.step or 0, item.backward or 0) >= 0
    if b"\r" not in data:
        parts = read_asd_events(LogSource(name="log", stream=Dribble(data, 61)))
        assert repr(list(parts)) == repr(whole)
    events = [item for item in whole if isinstance(item, AsdEvent)]
    once = without_relayed(events)
    relayed = [replace(event, source="rank 0", line=event.line) for event in events]
    if not any(math.isnan(event.value or 0) for event in events):
        assert without_relayed([*events, *relayed]) == once


def guard_report(data: bytes) -> None:
    """Tally an event file: what is told stays short, and its document keeps to its schema."""
    tally = GuardTally()
    tally.begin()
    for item in event_lines(LogSource(name="log", stream=io.BytesIO(data))):
        if isinstance(item, EventLine):
            tally.add(item.event)
    reading = LogReading(sources=("log",), steps=tally.steps, notes=(), problems=(), problem_count=0)
    answer = tally.report(reading)
    assert len(answer.drops) <= MOST
    assert problems_of(answer.to_dict()) == []
    assert prometheus(answer).endswith("\n")


def numbers(data: bytes) -> None:
    """Read one printed number: the same as Python's own, or none."""
    try:
        found = number(data)
    except UnreadableError as error:
        assert_short(error)
        return
    bare = data.strip().removeprefix(b"[").removesuffix(b"]").strip()
    if found is None:
        assert bare.lower() in {b"", b"none", b"unavailable", b"null"}
    else:
        assert repr(found) == repr(float(bare))


def columns(data: bytes) -> None:
    """Read `--columns`."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = parse_columns(text)
    except UsageError:
        return
    assert found.keys() <= ALIASES.keys()
    assert parse_columns(",".join(f"{name}={column}" for name, column in found.items())) == found


DIALECTS: dict[str, Callable[[bytes], None]] = {
    "log-mindformers": of(MindFormers(), by_line=False),
    "log-megatron": of(Megatron(), by_line=False),
    "log-hf-trainer": of(HfTrainer(), by_line=False),
    "log-hf-printed": of(HfPrinted(), by_line=False),
    "log-guard-events": of(GuardEvents(), by_line=True),
    "log-json-lines": of(JsonLines(), by_line=True),
    "log-csv": of(Csv(), by_line=True),
    "log-tensorboard": of(TensorBoard(), by_line=False),
}
