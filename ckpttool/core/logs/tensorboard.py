"""TensorBoard's event files: records with checksums, each with one `Event` in protobuf.

    length (8 bytes)  its checksum (4)  event (length bytes)  its checksum (4)

Scalars are in `simple_value`, as torch and TensorFlow 1 write them, or in a tensor without dimensions, as TensorFlow 2
writes them.

Source: `record_writer.cc`, `event.proto`, `summary.proto` and `tensor.proto` in TensorFlow; `data_compat.py` and
`tensor_util.py` in TensorBoard.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, cast

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, NoteKind, show_local_time
from ckpttool.core.formats.crc32c import crc32c
from ckpttool.core.formats.protobuf import WireError, fields, signed, varint
from ckpttool.core.logs.base import BLOCK_BYTES, EXCERPT_CHARS, LogSource, Readable, local_time, problem
from ckpttool.core.logs.fields import ALIASES, CURVES, Row, resolve_columns, steps_of

MOST_RECORD_BYTES = 16 << 20
"""Maximum size of a parsed event in bytes.

A step's event has a few dozen bytes; images and graphs may be larger, but are not needed.
"""

_SURE_BYTES = 1 << 16
"""Size in bytes above which a record is an image or a graph, whose checksum is compared only if a value is read."""

MOST_STEPS = 200_000
"""Maximum number of steps that wait for values of more tags, which take about 100 MB.

If a tag restarts after so many steps, it is treated as a resume.
"""

_SHOWN_TAGS = 8

_HEAD = struct.Struct("<Q4s")
_SUM = struct.Struct("<I")

# Keys of fields: eight times the field number, plus the encoding of the value.
_WALL_TIME, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE = 0x0A
_TAG, _SIMPLE_VALUE, _TENSOR = 0x0A, 0x15, 0x42
_DTYPE, _SHAPE, _CONTENT = 0x08, 0x12, 0x22


class _DType(NamedTuple):
    content: str
    """`struct` format character for one number."""
    key: int
    """Key of the field with single numbers of this type."""
    packed: int
    """Key of the field with packed numbers of this type."""
    below: bytes = b""
    """Missing lower bytes of a number, because a bfloat16 is the upper half of a float."""


_DTYPES = {
    1: _DType("<f", 0x2D, 0x2A),
    2: _DType("<d", 0x31, 0x32),
    3: _DType("<i", 0x38, 0x3A),
    4: _DType("<B", 0x38, 0x3A),
    5: _DType("<h", 0x38, 0x3A),
    6: _DType("<b", 0x38, 0x3A),
    9: _DType("<q", 0x50, 0x52),
    10: _DType("<?", 0x58, 0x5A),
    14: _DType("<f", 0x68, 0x6A, below=b"\0\0"),
    17: _DType("<H", 0x38, 0x3A),
    19: _DType("<e", 0x68, 0x6A),
    22: _DType("<I", 0x80, 0x82),
    23: _DType("<Q", 0x88, 0x8A),
}
"""Numeric types of `types.proto`, without text, complex numbers and quantised numbers."""

_NOT_VARINTS = frozenset({1, 2})
"""Numeric types with a fixed-size encoding; all others are varints."""


class _Event(NamedTuple):
    record: int
    """Number of the record, from 1."""
    step: int
    time: float
    """Time in seconds since 1970."""
    values: dict[str, float]
    """All scalars, by tag."""


class TensorBoard:
    """TensorBoard's format, `events.out.tfevents.*`, with one tag per field."""

    name = "tensorboard"

    def recognise(self, head: bytes) -> bool:
        """Return whether a log has this format, by the record with which every event file begins."""
        return b"brain.Event:" in head[:64]

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the steps, and notes where a tag goes back because the training was resumed; lines are records."""
        return steps_of(source, _rows(source))


def _rows(source: LogSource) -> Iterator[Row | LogProblem | LogNote]:
    waiting = _Waiting(source)
    for item in _events(source):
        if not isinstance(item, _Event):
            yield item
            continue
        if waiting.goes_back(item):
            yield from waiting.rows()
        elif len(waiting.steps) >= MOST_STEPS:
            yield from waiting.rows(MOST_STEPS // 2)
        waiting.add(item)
    yield from waiting.rows()
    if waiting.others and not waiting.seen:
        tags = ", ".join(sorted(waiting.others)).encode()
        reason = "it has no tag that ckpttool recognizes: name one with --columns loss=TAG"
        yield problem(source, 1, reason, tags)


class _Waiting:
    """Steps that may still get values, because some writers write one tag completely before the next."""

    def __init__(self, source: LogSource) -> None:
        self.steps: dict[int, tuple[int, float, dict[str, float]]] = {}
        """Record, time and values by tag, for each step."""
        self.seen: set[str] = set()
        """Requested tags that occur in the log."""
        self.others: set[str] = set()
        """Some of the other tags in the log."""
        self._source = source
        passed_over = _OWN if source.curves else _OWN | CURVES
        self._asked = {tag for field, tags in ALIASES.items() if field not in passed_over for tag in tags}
        self._asked.update((source.columns or {}).values())
        self._last: dict[str, int] = {}
        """Last step of each tag."""

    def goes_back(self, event: _Event) -> bool:
        """Return whether an event is for an earlier step than one at which the same tag has a value."""
        return any(event.step < self._last.get(tag, event.step) for tag in event.values)

    def add(self, event: _Event) -> None:
        for tag, value in event.values.items():
            if tag in self._asked:
                self.seen.add(tag)
                self._last[tag] = event.step
                self.steps.setdefault(event.step, (event.record, event.time, {}))[2][tag] = value
            elif len(self.others) < _SHOWN_TAGS:
                self.others.add(tag[:EXCERPT_CHARS])

    def rows(self, count: int | None = None) -> Iterator[Row]:
        """Yield and remove the `count` lowest steps; None removes all, and forgets the last step of each tag."""
        tags = resolve_columns(self._source, frozenset(self.seen))
        for step in sorted(self.steps)[:count]:
            record, time, values = self.steps.pop(step)
            row = {field: f"{values[tag]:.17g}" for field, tag in tags.items() if field not in _OWN and tag in values}
            yield record, {**row, "step": str(step), "time": _time_text(time)}
        if count is None:
            self._last.clear()


_OWN = frozenset({"step", "time"})
"""Fields that every event has, whatever its tags."""


def _time_text(time: float) -> str:
    """Format a time in the usual form of logs; empty if the time is outside the calendar."""
    with suppress(ValueError, OverflowError, OSError):
        return show_local_time(local_time(time))
    return ""


def _events(source: LogSource) -> Iterator[_Event | LogProblem | LogNote]:
    """Yield the events with scalars, and the problems of other records."""
    stream = _Stream(source.stream)
    record, at = 0, 0
    while head := stream.take(_HEAD.size):
        record += 1
        if len(head) < _HEAD.size:
            yield _cut(source, record)
            return
        length, checksum = _HEAD.unpack(head)
        if checksum != _checksum_of_length(length):
            reason = f"nothing can be read from byte {at} on: the record's length does not match its checksum"
            yield problem(source, 0, reason, b"")
            return
        if length > MOST_RECORD_BYTES:
            yield _too_large(source, record, at, length)
            if stream.skip(length + _SUM.size):
                yield _cut(source, record)
                return
        else:
            data, checksum = stream.take(length), stream.take(_SUM.size)
            if len(checksum) < _SUM.size:
                yield _cut(source, record)
                return
            yield from _parsed(source, record, at, data, checksum)
        at += _HEAD.size + length + _SUM.size


def _parsed(source: LogSource, record: int, at: int, data: bytes, checksum: bytes) -> Iterator[_Event | LogProblem]:
    """Parse a record; a damaged record yields only its problem."""
    event: _Event | None = None
    reason = ""
    try:
        event = _event(record, data)
    except WireError as error:
        reason = f"the record at byte {at} is not an event: {error}"
    if (reason or len(data) <= _SURE_BYTES or (event and event.values)) and checksum != masked_checksum(data):
        reason = f"the record at byte {at} does not match its checksum"
    if reason:
        yield problem(source, record, reason, b"")
    elif event and event.values:
        yield event


def _too_large(source: LogSource, record: int, at: int, length: int) -> LogProblem:
    return problem(
        source, record, f"the record at byte {at} has {length} bytes; ckpttool reads at most {MOST_RECORD_BYTES}", b""
    )


def _cut(source: LogSource, record: int) -> LogNote:
    return LogNote(kind=NoteKind.CUT, source=source.name, line=record, step=None)


class _Stream:
    """A log that is read in blocks and returned in pieces."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._block = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes; fewer only at the end of the log."""
        if len(self._block) - self._at < size:
            parts = [self._block[self._at :]]
            missing = size - len(parts[0])
            while missing > 0 and (part := self._stream.read(max(missing, BLOCK_BYTES))):
                parts.append(part)
                missing -= len(part)
            self._block, self._at = b"".join(parts), 0
        taken = self._block[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def skip(self, size: int) -> int:
        """Skip bytes, and return how many were missing."""
        while size and (part := self.take(min(size, BLOCK_BYTES))):
            size -= len(part)
        return size


def _event(record: int, data: bytes) -> _Event:
    """Parse an event.

    Raises:
        WireError: The bytes are not an event.
    """
    step, time = 0, 0.0
    values: dict[str, float] = {}
    for key, value in fields(data):
        if key == _STEP:
            step = signed(cast("int", value))
        elif key == _WALL_TIME:
            (time,) = struct.unpack("<d", cast("bytes", value))
        elif key == _SUMMARY:
            for inner, member in fields(cast("bytes", value)):
                if inner == _VALUE:
                    values.update(_scalar(cast("bytes", member)))
    return _Event(record, step, time, values)


def _scalar(message: bytes) -> Iterator[tuple[str, float]]:
    """Yield the tag and the value of a summary's entry, if it is a scalar."""
    tag, number = "", None
    for key, value in fields(message):
        if key == _TAG:
            tag = cast("bytes", value).decode(errors="replace")
        elif key == _SIMPLE_VALUE:
            (number,) = struct.unpack("<f", cast("bytes", value))
        elif key == _TENSOR:
            number = _only_element(cast("bytes", value))
    if number is not None:
        yield tag, number


def _only_element(message: bytes) -> float | None:
    """Return the value of a tensor without dimensions; None for any other tensor, or if the value is not a number.

    Raises:
        WireError: The tensor does not contain exactly one number of its type.
    """
    members = dict(fields(message))
    kind = cast("int", members.get(_DTYPE, 0))
    dtype = _DTYPES.get(kind)
    if members.get(_SHAPE) or dtype is None:
        return None
    size = struct.calcsize(dtype.content) - len(dtype.below)
    value = members.get(_CONTENT, members.get(dtype.packed, members.get(dtype.key, 0)))
    if isinstance(value, bytes) and _CONTENT not in members and kind not in _NOT_VARINTS:
        value = _one_varint(value)
    if isinstance(value, int):  # protobuf omits a value of 0
        value = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    if len(value) != size:
        raise WireError(f"a scalar has {len(value)} bytes")
    (number,) = struct.unpack(dtype.content, dtype.below + value)
    return cast("float", number)


def _one_varint(packed: bytes) -> int:
    with suppress(IndexError):
        value, end = varint(packed, 0)
        if end == len(packed):
            return value
    raise WireError(f"a scalar has {len(packed)} bytes")


def masked_checksum(data: bytes) -> bytes:
    """Return the checksum that a record stores: masked, so that it never equals the checksum of a checksum."""
    value = crc32c(data)
    return _SUM.pack(((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@lru_cache(maxsize=1024)
def _checksum_of_length(length: int) -> bytes:
    """Return the checksum of a record's length, cached because there are few different lengths."""
    return masked_checksum(length.to_bytes(8, "little"))
