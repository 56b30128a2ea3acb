"""Logs made short, for the tests of the readers."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, StepMetrics
from ckpttool.core.logs.base import LogFormat, LogSource
from ckpttool.trainers.registry import log_reader

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"


class Dribble:
    """A stream that gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        self._stream = io.BytesIO(data)
        self._size = size

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._size))


def read(
    format_: LogFormat, data: bytes, columns: Mapping[str, str] | None = None, *, curves: bool = False
) -> list[LogItem]:
    """Return all items of a log."""
    return list(format_.read(LogSource(name="log", stream=io.BytesIO(data), columns=columns, curves=curves)))


def read_log(
    path: str, *, columns: Mapping[str, str] | None = None, stdin: BinaryIO | None = None
) -> Iterator[LogItem]:
    """Read a log of whatever format it is."""
    spelled = None if columns is None else ",".join(f"{field}={name}" for field, name in columns.items())
    return log_reader(spelled).read(path, stdin=stdin)


def log(format_: LogFormat, name: str, **columns: str) -> list[LogItem]:
    """Read a fixture."""
    return read(format_, (LOGS / name).read_bytes(), columns or None)


def steps(items: Iterable[LogItem]) -> list[StepMetrics]:
    return [item for item in items if isinstance(item, StepMetrics)]


def problems(items: Iterable[LogItem]) -> list[LogProblem]:
    return [item for item in items if isinstance(item, LogProblem)]


def notes(items: Iterable[LogItem]) -> list[LogNote]:
    return [item for item in items if isinstance(item, LogNote)]
