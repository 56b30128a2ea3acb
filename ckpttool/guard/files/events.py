"""The events of one rank: a file with one line per event, and the other receivers.

`logs/guard_events.py` reads the file like any log.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Condition, Thread
from typing import cast

from ckpttool.core.domain.guarding import EVENTS_FOLDER, EVENTS_SCHEMA, EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import number
from ckpttool.core.write.files import close, ensure_folder, open_to_append
from ckpttool.guard.contain import MOST_FAILURES, one_line
from ckpttool.guard.model.guarding import Emit

LONGEST_LINE = 4096
"""Number of bytes that one `write` appends atomically, even if others write to the file."""
_ROOM_FOR_LOST = 32
"""Number of bytes in a line that are reserved for the number of lost lines."""

_NEVER_CUT = ("schema", "kind", "step", "time", "cut")

_ROTATED_AT = 256 << 20
"""Size in bytes at which a file is renamed to `.1`, after a few million steps."""

_MOST_WAITING = 4 << 20
"""Maximum number of bytes that wait for an unresponsive disk. Later lines are dropped and counted."""

_STEP_BYTES = 512
"""Number of bytes that a step counts while it waits. Its line is about half as long.

The writer encodes several steps together, because encoding between the operations of a training run takes several times
as long.
"""

_ONE_WRITE = 1 << 16
"""Number of bytes per write. Each call yields to the training run, which costs milliseconds on a busy machine."""

_BUFFERED_SECONDS = 1.0
_BUFFERED_BYTES = 1 << 16
"""Number of waiting bytes at which the writer wakes up, so that a loop of 10,000 steps per second loses no line."""

_DURABLE = frozenset(
    {
        GuardEventKind.STOP,
        GuardEventKind.CAPTURE,
        GuardEventKind.SDC_STRIKE,
        GuardEventKind.CHECKSUM_ABNORMAL,
        GuardEventKind.SAVED,
    }
)
"""Events that must be on disk before training continues or ends."""


class EventFile:
    """Writer of events in its own thread, so that a slow disk does not delay training.

    It never raises: lines that cannot be written are counted, and the next written line contains their number. A
    process that was forked from this one, such as a data loader, writes nothing.
    """

    def __init__(  # noqa: PLR0913  all except the first have defaults, and callers name them
        self,
        output: str | os.PathLike[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        step: int = 0,
        policy: EventValue = None,
        switched_on: str = "code",
        versions: Mapping[str, str] | None = None,
        io_timeout: float = 60.0,
        rotate_at: int = _ROTATED_AT,
    ) -> None:
        """Create a file, or append to the file of an earlier process.

        Args:
            output: The output folder of the training run, which will contain `guard/events-00000.jsonl`.
            rank: Rank of this process, among all.
            world_size: Number of processes.
            step: The step after which this process continues, or 0 for a fresh start.
            policy: The active policy, and its settings.
            switched_on: How the guard was switched on: `code`, or the name of an environment variable.
            versions: Versions of the run's software, by name.
            io_timeout: Timeout in seconds for a disk that does not respond.
            rotate_at: Number of bytes from which the file is rotated.
        """
        self.path = f"{os.path.abspath(output)}/{EVENTS_FOLDER}/events-{rank:05d}.jsonl"
        now = time.time()
        self._about: dict[str, EventValue] = {
            "schema": EVENTS_SCHEMA,
            "kind": GuardEventKind.RUN.value,
            "step": step,
            "rank": rank,
            "world_size": world_size,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "time": _moment(now),
            "unix": round(now, 3),
            "versions": dict(versions or {}),
            "policy": policy,
            "switched_on": switched_on,
        }
        """The first line of a process, with its rank and its versions."""
        self._pid = os.getpid()
        self._io_timeout = io_timeout
        self._file = _File(self.path, rotate_at)
        self._changed = Condition()
        self._waiting: list[bytes | dict[str, EventValue]] = [_line(self._about)]
        self._bytes = 0
        self._emitted = 1  # lines in all
        self._done = 0  # the number of written or lost lines
        self._is_urgent = self._is_durable = self._is_closed = self._is_hung = False
        self._dropped = 0
        self._thread: Thread | None = None
        self._second, self._time = -1, ""
        self._at_the_end = _at_the_end(self.close)

    def emit(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Write one event at a step. Matches the `Emit` protocol."""
        if os.getpid() != self._pid or self._is_closed:
            return
        is_step = kind is GuardEventKind.STEP
        now = values.get("time") or self._now()
        record = {"kind": kind.value, "step": int(step), **values, "time": now} | {"kind": kind.value}
        line = record if is_step else _line_or_none(record)
        with self._changed:
            self._emitted += 1
            reported = self._emitted
            size = _STEP_BYTES if is_step else len(line or b"")
            if line is None or self._bytes + size > _MOST_WAITING:
                self._dropped += 1
                self._done += 1
                return
            self._waiting.append(line)
            self._bytes += size
            self._start()
            if not is_step or self._bytes > _BUFFERED_BYTES:
                self._is_urgent = True
                self._is_durable |= kind in _DURABLE
                self._changed.notify_all()
            elif len(self._waiting) == 1:
                self._changed.notify_all()  # the writer has to check the clock now
            if kind in _DURABLE:
                self._wait(reported)

    def flush(self) -> bool:
        """Wait until all events are written. Return False if the disk took too long."""
        if os.getpid() != self._pid:
            return False
        with self._changed:
            self._start()
            self._is_urgent = True
            self._changed.notify_all()
            return self._wait(self._emitted)

    def close(self) -> None:
        """Write the remaining events, and close the file. Later events are ignored."""
        if os.getpid() != self._pid:
            return
        self._at_the_end()
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._io_timeout if not self._is_hung else 0)

    @property
    def lost(self) -> int:
        """Number of lines that could not be written since the last one that could."""
        return self._dropped + self._file.lost

    def _now(self) -> str:
        now = time.time()
        if int(now) != self._second:
            self._second, self._time = int(now), _moment(now)
        return self._time

    def _wait(self, line: int) -> bool:
        """Return whether a line was written in time. After a timeout, do not wait again until the disk responds."""
        in_time = self._changed.wait_for(lambda: self._done >= line, 0 if self._is_hung else self._io_timeout)
        self._is_hung = not in_time
        return in_time

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._write, name="ckpttool-events", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        """Write lines until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_urgent or self._is_closed)
                self._changed.wait_for(lambda: self._is_urgent or self._is_closed, _BUFFERED_SECONDS)
                waiting, self._waiting, self._bytes = self._waiting, [], 0
                durable, self._is_urgent, self._is_durable = self._is_durable, False, False
                dropped, self._dropped = self._dropped, 0
                if self._is_closed and not waiting:
                    break
            found = [line if isinstance(line, bytes) else _line_or_none(line) for line in waiting]
            lines = [line for line in found if line is not None]
            self._file.lost += dropped + len(found) - len(lines)
            for batch in _batches(lines, self._file.at_once):
                self._file.write(batch, self._about)
            if durable:
                self._file.bring_to_disk()
            with self._changed:
                self._done += len(waiting)
                self._changed.notify_all()
        self._file.close()


class EventSinks:
    """All receivers of events: the file of this rank, and the sinks. It never raises."""

    def __init__(self, sinks: Sequence[Emit], *, begin: Callable[[], EventFile | None]) -> None:
        """Store the sinks, and a function that opens the file at the first event, or returns None for no file."""
        self.sinks: list[Emit] = list(sinks)
        """A sink that raises three times is removed."""
        self._begin: Callable[[], EventFile | None] | None = begin
        self._file: EventFile | None = None
        self._failures: Counter[int] = Counter()

    def tell(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Send an event to all receivers. Matches the `Emit` protocol."""
        if (begin := self._begin) is not None:
            self._begin = None
            self._file = begin()
        for sink in (*self.sinks, *(() if self._file is None else (self._file.emit,))):
            try:
                sink(kind, step=step, **values)
            except Exception as error:  # noqa: BLE001  no error here may end the training
                self._failed(sink, step, error)

    def tell_all(self, events: Iterable[GuardEvent]) -> None:
        """Send several events."""
        for event in events:
            self.tell(event.kind, step=event.step, **event.values)

    def close(self) -> None:
        """Write the remaining lines, and close the file."""
        if self._file is not None:
            self._file.close()

    def _failed(self, sink: Emit, step: Step, error: Exception) -> None:
        self._failures[id(sink)] += 1
        if self._failures[id(sink)] == MOST_FAILURES and sink in self.sinks:
            self.sinks.remove(sink)
            self.tell(GuardEventKind.GUARD_ERROR, step=step, part="sink", error=f"left out: {one_line(error)}")


class _File:
    """A file that is reopened after each failure."""

    def __init__(self, path: str, rotate_at: int) -> None:
        self.path = path
        self.lost = 0
        self._rotate_at = rotate_at
        self.at_once = min(_ONE_WRITE, rotate_at // 4)
        self._handle: int | None = None
        self._size = 0
        self._is_torn = False

    def write(self, lines: bytes, about: Mapping[str, EventValue]) -> None:
        """Write lines, and count the lines that were not completely written."""
        try:
            self._write(lines, about)
        except Exception:  # noqa: BLE001  after any error the next line may succeed, and a caller waits for this one
            self.lost += lines.count(b"\n")
            self.close()

    def _write(self, lines: bytes, about: Mapping[str, EventValue]) -> None:
        if self._handle is not None and self._size + len(lines) > self._rotate_at:
            self.close()
            os.replace(self.path, f"{self.path}.1")
            self._open()
            self._put(_line({**about, "rotated": True}))
        elif self._handle is None:
            self._open()
        if self.lost:
            first, rest = lines.split(b"\n", 1)
            lines = first[:-1] + f', "lost": {self.lost}}}\n'.encode() + rest
        put = self._put(lines)
        if b"\n" in lines[:put]:
            self.lost = 0
        if put < len(lines):  # the disk is full
            self.lost += lines.count(b"\n", put)
            self.close()

    def _put(self, lines: bytes) -> int:
        """Write as much as fits, and return the number of bytes written."""
        # A line that was torn by a full disk or a kill ends here, and does not damage these lines.
        ending = b"\n" if self._is_torn else b""
        put = os.write(cast("int", self._handle), ending + lines)
        self._size += put
        self._is_torn = False
        return max(0, put - len(ending))

    def _open(self) -> None:
        ensure_folder(os.path.dirname(self.path))
        self._handle = open_to_append(self.path)
        self._size = os.fstat(self._handle).st_size
        with open(self.path, "rb") as file:
            file.seek(max(0, self._size - 1))
            self._is_torn = file.read(1) not in {b"", b"\n"}

    def bring_to_disk(self) -> None:
        """Wait until the data is on the disk."""
        if self._handle is not None:
            with suppress(OSError):
                os.fsync(self._handle)

    def close(self) -> None:
        if self._handle is not None:
            close(self._handle)
        self._handle = None


def _batches(lines: Sequence[bytes], most: int) -> Iterator[bytes]:
    """Join lines into batches of at most `most` bytes. A longer line becomes its own batch."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > most:
            yield b"".join(batch)
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    yield b"".join(batch)


def _at_the_end(close: Callable[[], None]) -> Callable[[], object]:
    """Close a file when this process ends, and return a function that cancels that."""
    if "multiprocessing.util" in sys.modules:  # forked processes end without running `atexit`
        from multiprocessing.util import Finalize

        return Finalize(None, close, exitpriority=0).cancel
    atexit.register(close)
    return partial(atexit.unregister, close)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _line(record: dict[str, EventValue]) -> bytes:
    """Encode a record on one line, truncated to fit. Non-finite values become text, because `jq` rejects them."""
    text = _encode(record)
    cut = dict(record)
    while len(text) >= LONGEST_LINE - _ROOM_FOR_LOST:
        key = max((key for key in cut if key not in _NEVER_CUT), key=lambda key: len(_encode(cut[key])), default=None)
        value = None if key is None else cut[key]
        if key is None or value is None:  # a thousand short values
            cut = {key: cut[key] for key in _NEVER_CUT if key in cut}
        else:
            cut[key] = value[: len(value) // 2] if isinstance(value, (str, list)) and len(value) > 1 else None
        cut["cut"] = True
        text = _encode(cut)
    return f"{text}\n".encode()


def _line_or_none(record: dict[str, EventValue]) -> bytes | None:
    """Encode a record, or return None if a value cannot be encoded, because that must not end a training run."""
    try:
        return _line(record)
    except Exception:  # noqa: BLE001  as above
        return None


_JSON = json.JSONEncoder(allow_nan=False, default=repr)


def _encode(value: EventValue) -> str:
    try:
        return _JSON.encode(value)
    except ValueError:
        return _JSON.encode(_in_words(value))


def _in_words(value: EventValue) -> EventValue:
    match value:
        case float() if not math.isfinite(value):
            return number(value)
        case list() | tuple():
            return [_in_words(item) for item in value]
        case dict():
            return {key: _in_words(item) for key, item in value.items()}
        case _:
            return value
