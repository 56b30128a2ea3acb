"""Interface for training logs: a stream of bytes becomes steps, notes and problems in log order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from ckpttool.core.domain.metrics import LocalTime, LogItem, LogNote, LogProblem, NoteKind
from ckpttool.core.domain.units import Step

BLOCK_BYTES = 1 << 18
"""Size of a block in bytes: large enough to keep Python's overhead per byte low, small enough for the cache."""

LONGEST_LINE = 1 << 20
"""Maximum length of a line in bytes, so that a file without line ends is not read into memory completely."""

EXCERPT_CHARS = 200

_LONGEST_USEFUL = 1 << 14  # in bytes; printed settings may name hundreds of files

# Each digit can match in only one way, because two ways would take hours for a torn line of a million digits.
_DECIMAL = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_TWO_NUMBERS = re.compile(rb"[\d.eE+-]+(?:\s+[\d.eE+-]+)+")
_NO_VALUE = frozenset({b"", b"none", b"unavailable", b"null"})


class Readable(Protocol):
    """Binary file, with the only method that a reader needs and that a pipe also has."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; empty at the end of the file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """An open log, with the user's options for it."""

    name: str
    """Name of the log for display."""
    stream: Readable
    """The decompressed log, from its first byte."""
    columns: Mapping[str, str] | None = None
    """Column for each field of `StepMetrics`, if the user set them."""
    curves: bool = False
    """Whether to yield learning rates and validation losses, even for steps without other values."""


class LogFormat(Protocol):
    """Interface of a log format."""

    @property
    def name(self) -> str:
        """Name of the format for users."""
        ...

    def recognise(self, head: bytes) -> bool:
        """Return whether a log begins like this format; the file's name is never used."""
        ...

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the entries of a log, in order and in bounded memory.

        Raises:
            OSError: The disk did not answer, or the compressed data are damaged.
        """
        ...


RankLogs = tuple[str, ...]
"""Logs of one rank, oldest first."""


class LogPlaces(Protocol):
    """Places where a trainer writes its logs."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the logs, as shown in a message."""
        ...

    def near(self, root: str) -> tuple[RankLogs, ...]:
        """Return each rank's logs, lowest rank first, for the run that saved into a folder; empty if there are no logs.

        Args:
            root: The folder with the checkpoints.
        """
        ...

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the training logs in a folder that the user named."""
        ...


@dataclass(slots=True)
class Block:
    """A block of complete lines."""

    data: bytes
    first_line: int
    """Line number of the block's first line, from 1."""
    _requests: int = 0
    _lines_before: int = 0

    def line_number(self, position: int) -> int:
        """Return the number of the line at a position in the block; fast for ascending positions."""
        if position < self._requests:
            self._requests = self._lines_before = 0
        self._lines_before += self.data.count(b"\n", self._requests, position)
        self._requests = position
        return self.first_line + self._lines_before

    def line_start(self, position: int) -> int:
        """Return the start of the line at a position in the block."""
        return self.data.rfind(b"\n", 0, position) + 1

    def line_end(self, position: int) -> int:
        """Return the end of the line at a position in the block, without its line break."""
        end = self.data.find(b"\n", position)
        return len(self.data) if end < 0 else end


def blocks(source: LogSource) -> Iterator[Block | LogProblem]:
    """Yield the log in blocks of complete lines; lines above the length limit are skipped and reported."""
    line = 1
    rest = b""
    while chunk := source.stream.read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            block = Block(rest + chunk[:cut], line)
            yield block
            line += block.data.count(b"\n")
            rest = chunk[cut:]
        elif len(rest) + len(chunk) <= LONGEST_LINE:
            rest += chunk
        else:
            yield problem(source, line, "the line is too long for a log", rest)
            rest = _skip_line(source)
            line += 1
    if rest:
        yield Block(rest, line)


def _skip_line(source: LogSource) -> bytes:
    """Read up to the next line break, and return the rest of that chunk."""
    while chunk := source.stream.read(BLOCK_BYTES):
        if (cut := chunk.find(b"\n") + 1) > 0:
            return chunk[cut:]
    return b""


def lines(source: LogSource) -> Iterator[tuple[int, bytes] | LogProblem]:
    """Yield each line with its number and without its line break, for formats in which every line matters."""
    for block in blocks(source):
        if isinstance(block, LogProblem):
            yield block
        else:
            yield from enumerate(block.data.splitlines(), block.first_line)


def lines_with(block: Block, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a block that match a pattern, each once, with its number and without its line break.

    Lines that are longer than any useful line are left out.
    """
    end = -1
    for match in pattern.finditer(block.data):
        if match.start() >= end:
            start, end = block.line_start(match.start()), block.line_end(match.end())
            if end - start <= _LONGEST_USEFUL:
                yield block.line_number(start), block.data[start:end]


def problem(source: LogSource, line: int, reason: str, text: bytes) -> LogProblem:
    """Return a problem with an excerpt of the line that is safe to print."""
    return LogProblem(source=source.name, line=line, reason=reason, text=escaped(text))


def escaped(text: bytes) -> str:
    """Return the beginning of a line, with control characters escaped because they must not reach a terminal."""
    start = text[: EXCERPT_CHARS * 4].decode("utf-8", "backslashreplace").strip()[:EXCERPT_CHARS]
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in start)


def rewind(source: LogSource, line: int, step: Step, last: Step) -> LogNote:
    """Return a note that the log goes back from step `last` to `step`."""
    return LogNote(kind=NoteKind.REWIND, source=source.name, line=line, step=step, previous_step=last)


def local_time(seconds: float) -> LocalTime:
    """Convert seconds since 1970 to the local time of this machine's logs.

    Raises:
        ValueError: The time is outside the calendar.
        OverflowError: The time is outside the calendar.
    """
    local = datetime.fromtimestamp(seconds).astimezone()
    return LocalTime(local.replace(tzinfo=timezone.utc).timestamp())


class UnreadableError(ValueError):
    """The text is not a number; the message contains the reason."""


def number(text: bytes) -> float | None:
    """Return the number in a text, with or without brackets; None for `None`. NaN and infinity are numbers.

    Raises:
        UnreadableError: The text is not a number. `[1 31049]` is ambiguous, because it may be 1.31049 or 131049 with a
            character lost in printing.
    """
    bare = text.strip().removeprefix(b"[").removesuffix(b"]").strip()
    if _DECIMAL.fullmatch(bare):
        return float(bare)
    if bare.lower() in _NO_VALUE:
        return None
    if _TWO_NUMBERS.fullmatch(bare):
        raise UnreadableError("has lost its decimal point or a digit")
    raise UnreadableError("is not a number")
