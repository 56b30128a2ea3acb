"""Reader for training logs of every known format, which it recognizes by content."""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO, TypeVar

from ckpttool.core.domain.metrics import LogItem, LogProblem, StepMetrics, TrainingLog
from ckpttool.core.domain.question import STDIN
from ckpttool.core.errors import UsageError
from ckpttool.core.logs.base import Block, LogFormat, LogPlaces, LogSource, RankLogs, Readable, blocks
from ckpttool.core.logs.columns import Csv, JsonLines
from ckpttool.core.logs.fields import parse_columns
from ckpttool.core.logs.guard_events import GuardEvents, GuardFiles
from ckpttool.core.logs.merge import merge
from ckpttool.core.logs.run_folder import RunFolder
from ckpttool.core.logs.table import FIELDS
from ckpttool.core.logs.tensorboard import TensorBoard
from ckpttool.core.storage import is_folder, open_storage
from ckpttool.core.storage.base import ByteSource, Kind, LostLinkError

_HEAD_BYTES = 1 << 20
_HEAD_LIMIT = 16 << 20
"""Maximum number of bytes before the first step, more than any trainer writes."""

_GZIP_MAGIC = b"\x1f\x8b"

_Item = TypeVar("_Item")


def expand_globs(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the logs that match the patterns, each once, with numbers in natural order; `-` is unchanged.

    Raises:
        UsageError: A pattern matches no file.
    """
    paths: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern == STDIN or os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        if not names:
            raise UsageError(f"no log matches {pattern!r}")
        paths.update(dict.fromkeys(sorted(names, key=_natural)))
    return tuple(paths)


class LogReader:
    """Reader of logs, which also finds the logs of trainers."""

    def __init__(
        self,
        of_trainers: Iterable[LogFormat] = (),
        places: Sequence[LogPlaces] = (),
        *,
        columns: str | None = None,
        curves: bool = False,
    ) -> None:
        """Store the log formats in addition to those with named columns.

        Args:
            of_trainers: The trainers' formats, most specific first.
            places: The places of the trainers' logs.
            columns: Names of columns, in the form `step=iter,global_norm=gnorm`.
            curves: Whether learning rates and validation losses are requested.
        """
        self._curves = curves
        self.recognised: set[str] = set()
        """Names of the formats of the logs that were opened so far."""
        self.formats = (TensorBoard(), *of_trainers, GuardEvents(), JsonLines(), Csv())
        self.no_format = (
            f"is not a log that ckpttool recognizes ({', '.join(format_.name for format_ in self.formats)})"
        )
        self._places = (GuardFiles(), *places, RunFolder())
        self._columns = None if columns is None else parse_columns(columns)

    def expand(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Return the logs that the user selected by files, globs, folders of logs, or `-`; each once.

        Raises:
            UsageError: A selected log does not exist.
        """
        names: dict[str, None] = {}
        for pattern in patterns:
            paths = self._inside(pattern) if is_folder(pattern) else expand_globs([pattern])
            names.update(dict.fromkeys(paths))
        return tuple(names)

    def near(self, root: str) -> tuple[RankLogs, ...]:
        """Return the logs near the checkpoint folder, by rank, lowest rank first; empty if there are no logs."""
        return next((logs for places in self._places if (logs := places.near(root))), ())

    def _inside(self, folder: str) -> tuple[str, ...]:
        logs_inside = next((logs for places in self._places if (logs := places.inside(folder))), ())
        if not logs_inside:
            names = " and no ".join(name for places in self._places for name in places.names)
            raise UsageError(f"{folder} has no {names}; give the logs in it")
        return logs_inside

    def read(self, path: str, *, stdin: BinaryIO | None = None) -> Iterator[LogItem]:
        """Yield the entries of one log, in order and in bounded memory; gzip is decompressed.

        A file that cannot be read to its end, or that has no known format, yields a problem with line 0, because one
        truncated log must not hide the others.

        Args:
            path: Path of the file, or `-`.
            stdin: The stream for `-`; by default, the standard input of this process.

        Raises:
            UsageError: The log cannot be read unless another option is given.
        """
        yield from _to_its_end(path, self._items(path, stdin))

    def _items(self, path: str, stdin: BinaryIO | None) -> Iterator[LogItem]:
        with open_log(path, stdin=stdin) as stream:
            head, format_ = self._recognise(stream)
            if format_ is None:
                if head.strip():
                    yield _whole_file(path, self.no_format)
                return
            self.recognised.add(format_.name)
            source = LogSource(name=path, stream=_Replay(head, stream), columns=self._columns, curves=self._curves)
            yield from format_.read(source)

    def _recognise(self, stream: Readable) -> tuple[bytes, LogFormat | None]:
        """Return the bytes read to recognize the format, and the format; None if it is unknown."""
        head = b""
        while len(head) < _HEAD_LIMIT and (part := stream.read(max(len(head), _HEAD_BYTES))):  # doubles each time
            head += part
            for format_ in self.formats:
                if format_.recognise(head):
                    return head, format_
        return head, None

    def merged(
        self, patterns: Sequence[str], root: str | None = None, *, keep: Collection[str] = FIELDS
    ) -> TrainingLog | None:
        """Return one value per step from all selected logs; None if no log was selected or found.

        Args:
            patterns: Files, globs, folders of logs, or `-`.
            root: The folder of the checkpoints, near which logs are searched if no patterns are given.
            keep: Fields of `StepMetrics` that will be used.

        Raises:
            UsageError: A selected log does not exist, or needs an option.
        """
        if patterns:
            return merge(((name, self.read(name)) for name in self.expand(patterns)), keep=keep)
        ranks = () if root is None else self.near(root)
        return merge(self._first_stage(ranks), keep=keep) if ranks else None

    def _first_stage(self, ranks: Sequence[RankLogs]) -> Iterator[tuple[str, Iterable[LogItem]]]:
        """Yield the logs of the ranks with the embedding: from rank 0 up to the first rank that measured no norm.

        Pipeline stages have neighbouring ranks, and other stages print 0, so their logs need not be read. If the first
        stage prints no norm at all, the last rank's logs follow, because some trainers print the norm only in the last
        stage.
        """
        has_norm = False
        for logs in ranks:
            measured = _Norms()
            yield from ((name, measured.among(self.read(name))) for name in logs)
            has_norm = has_norm or measured.has_any  # by now, all previous logs were read
            if not measured.has_embedding:
                break
        if not has_norm and len(ranks) > 1:
            yield from ((name, self.read(name)) for name in ranks[-1])


class _Norms:
    """Record of the kinds of norms that occur in some logs."""

    def __init__(self) -> None:
        self.has_any = False
        self.has_embedding = False

    def among(self, items: Iterable[LogItem]) -> Iterator[LogItem]:
        for item in items:
            if isinstance(item, StepMetrics):
                if item.embedding_local_norm:
                    self.has_embedding = True
                if item.global_norm is not None:
                    self.has_any = True
            yield item


@contextmanager
def open_log(path: str, *, stdin: BinaryIO | None = None) -> Iterator[Readable]:
    """Open a log as a stream of decompressed bytes.

    Raises:
        OSError: The log cannot be opened.
    """
    with ExitStack() as stack:
        raw: Readable = stdin or sys.stdin.buffer
        if path != STDIN:
            raw = _from_storage(path, stack) or stack.enter_context(open(path, "rb", buffering=0, opener=_open_finite))
        head = raw.read(len(_GZIP_MAGIC)) or b""
        if not head and isinstance(raw, io.FileIO) and stat.S_ISFIFO(os.fstat(raw.fileno()).st_mode):
            raise OSError(None, "this pipe is empty")  # the pipe has no writer, or was read before
        stream = _Replay(head, raw)
        yield stack.enter_context(gzip.GzipFile(fileobj=stream)) if head == _GZIP_MAGIC else stream


def blocks_of(path: str) -> Iterator[Block | LogProblem]:
    """Yield a file of any format in blocks of complete lines; yield a problem with line 0 if reading fails."""

    def opened() -> Iterator[Block | LogProblem]:
        with open_log(path) as stream:
            yield from blocks(LogSource(name=path, stream=stream))

    return _to_its_end(path, opened())


def _to_its_end(path: str, items: Iterator[_Item]) -> Iterator[_Item | LogProblem]:
    """Yield the items that were read and, if an error stopped the read, a problem with the error."""
    try:
        yield from items
    except (EOFError, zlib.error) as error:
        yield _whole_file(path, f"the compressed data is truncated or damaged: {error}")
    except OSError as error:
        yield _whole_file(path, f"cannot be read: {error.strerror or error}")


def _from_storage(path: str, stack: ExitStack) -> Readable | None:
    """Open a log that is a file in a storage; None for other logs, which only this machine can read."""
    folder, name = os.path.split(path)
    storage = open_storage(folder or ".")
    with suppress(LostLinkError):
        if storage.kind(name) is Kind.FILE:
            return _Stream(stack.enter_context(storage.open(name)))
    return None


def _open_finite(path: str, flags: int) -> int:
    """Open a pipe, such as `<(command)`, without waiting for a writer; devices are not read."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(fd).st_mode
    if (stat.S_ISCHR(kind) and path != os.devnull) or stat.S_ISBLK(kind) or stat.S_ISSOCK(kind):
        os.close(fd)
        raise OSError(None, "not a file")
    os.set_blocking(fd, True)  # from here on, wait for more data from the connected writer
    return fd


class _Stream:
    """A file that is read sequentially."""

    __slots__ = ("_offset", "_source")

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._offset = 0

    def read(self, size: int, /) -> bytes:
        part = self._source.read(self._offset, size)
        self._offset += len(part)
        return part


class _Replay:
    """A stream with some bytes pushed back to its beginning."""

    __slots__ = ("_head", "_stream")

    def __init__(self, head: bytes, stream: Readable) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        if self._head:
            part, self._head = self._head[:size], self._head[size:]
            return part
        return self._stream.read(size)

    def seek(self, _offset: int, /) -> object:
        raise io.UnsupportedOperation("a log is read only once, from start to end")


def _whole_file(path: str, reason: str) -> LogProblem:
    return LogProblem(source=path, line=0, reason=reason, text="")


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that places `worker_2` before `worker_10`."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
