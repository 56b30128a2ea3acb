"""Training logs of every kind that is known, told apart by their content."""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from ckpttool.domain.log_question import STDIN
from ckpttool.domain.metrics import LogItem, LogProblem
from ckpttool.errors import UsageError
from ckpttool.logs.base import LogFormat, LogSource, Readable
from ckpttool.logs.columns import Csv, JsonLines
from ckpttool.logs.tensorboard import TensorBoard
from ckpttool.trainers.huggingface.log import HfTrainer
from ckpttool.trainers.megatron.log import Megatron
from ckpttool.trainers.mindformers.logs.text import MindFormers

LOG_FORMATS: tuple[LogFormat, ...] = (TensorBoard(), HfTrainer(), MindFormers(), Megatron(), JsonLines(), Csv())
"""Most specific first."""

NO_FORMAT = f"is no log that ckpttool knows ({', '.join(each.name for each in LOG_FORMATS)})"
"""Why a file that can be read shows no step."""

_HEAD_BYTES = 1 << 20
_HEAD_LIMIT = 16 << 20
"""A trainer's start-up may write megabytes before its first step; no start-up writes more than this."""

_GZIP_MAGIC = b"\x1f\x8b"


def expand_globs(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the logs that the patterns name, numbers in natural order, each once; `-` stands for itself.

    Raises:
        UsageError: A pattern matches no file.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern == STDIN or os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        if not names:
            raise UsageError(f"no log matches {pattern!r}")
        found.update(dict.fromkeys(sorted(names, key=_natural)))
    return tuple(found)


def read_log(
    path: str, *, columns: Mapping[str, str] | None = None, stdin: BinaryIO | None = None
) -> Iterator[LogItem]:
    """Yield what one log shows, in its order and in bounded memory; gzip is unpacked on the way.

    A file that cannot be read to its end, or that no format recognises, ends in a problem with line 0: with many
    logs, one that is cut short is no reason to hear nothing of the others.

    Args:
        path: The file, or `-`.
        columns: Field of StepMetrics -> name in the log; see `parse_columns`.
        stdin: What `-` means; this process's own where it is not given.

    Raises:
        UsageError: The log cannot be read without a further option or package.
    """
    try:
        with open_log(path, stdin=stdin) as stream:
            head, format_ = _recognise(stream)
            if format_ is None:
                if head.strip():
                    yield _whole_file(path, NO_FORMAT)
                return
            plain = path != STDIN and not isinstance(stream, gzip.GzipFile)
            replay = _Replay(head, stream)
            yield from format_.read(LogSource(name=path, stream=replay, path=path if plain else None, columns=columns))
    except (EOFError, zlib.error) as error:
        yield _whole_file(path, f"the compressed data are cut short or damaged: {error}")
    except OSError as error:
        yield _whole_file(path, f"cannot be read: {error.strerror or error}")


@contextmanager
def open_log(path: str, *, stdin: BinaryIO | None = None) -> Iterator[Readable]:
    """Open a log as a stream of bytes, unpacked.

    Raises:
        OSError: It cannot be opened.
    """
    with ExitStack() as stack:
        if path == STDIN:
            raw: BinaryIO = stdin or sys.stdin.buffer
        else:
            raw = stack.enter_context(open(path, "rb", buffering=0, opener=_open_finite))
        head = raw.read(len(_GZIP_MAGIC)) or b""
        if not head and path != STDIN and stat.S_ISFIFO(os.fstat(raw.fileno()).st_mode):
            raise OSError(None, "nothing comes out of this pipe")  # nobody writes to it, or it has been read before
        stream = _Replay(head, raw)
        yield stack.enter_context(gzip.GzipFile(fileobj=stream)) if head == _GZIP_MAGIC else stream


def _open_finite(path: str, flags: int) -> int:
    """Open a file, or a pipe as `<(command)` is one; neither wait for a writer nor read a device."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(fd).st_mode
    if (stat.S_ISCHR(kind) and path != os.devnull) or stat.S_ISBLK(kind) or stat.S_ISSOCK(kind):
        os.close(fd)
        raise OSError(None, "not a file")
    os.set_blocking(fd, True)  # from a writer that is there, wait for more
    return fd


def _recognise(stream: Readable) -> tuple[bytes, LogFormat | None]:
    """Return the format and what had to be read to tell it."""
    head = b""
    while len(head) < _HEAD_LIMIT and (part := stream.read(max(len(head), _HEAD_BYTES))):  # twice as much each time
        head += part
        for format_ in LOG_FORMATS:
            if format_.recognise(head):
                return head, format_
    return head, None


class _Replay:
    """A stream with some bytes put back in front."""

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
        raise io.UnsupportedOperation("a log is read once, from front to end")


def _whole_file(path: str, reason: str) -> LogProblem:
    return LogProblem(source=path, line=0, reason=reason, text="")


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order `worker_2` before `worker_10`."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
