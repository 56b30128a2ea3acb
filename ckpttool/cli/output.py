"""stdout is the result and nothing else; everything for people's eyes goes to stderr."""

from __future__ import annotations

import errno
import os
import sys
from codecs import getincrementalencoder
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TextIO

from ckpttool.errors import WriteFailedError
from ckpttool.render.escape import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

_CHUNK = 1 << 20
"""Characters that are encoded at once."""

_UNLIMITED = 1 << 20
"""Columns of a line that nobody breaks."""


def result(text: str) -> None:
    """Write the result.

    Raises:
        WriteFailedError: It could not be written: a full disk, say. A reader who has left is no failure.
    """
    with _failure_told():
        _write(sys.stdout, text + "\n")


def table(renderable: RenderableType) -> None:
    """Write a result that is laid out for people; markup in names is text."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, width=_width())
    with _failure_told(), console.capture() as captured:
        console.print(renderable, crop=False)
    # rich pads every line of a table to its width; nobody who greps or pastes the result wants that.
    result("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def _width() -> int | None:
    """Return how wide a result may be; None where rich can tell it: on a terminal, or where somebody said so.

    Elsewhere a line ends where it ends: whoever greps wants all of it, and rich would take the width of stdin.
    """
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return None if sys.stdout is not None and sys.stdout.isatty() else _UNLIMITED


@contextmanager
def _failure_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailedError(f"the result could not be written: {error.strerror or error}") from None


def note(message: str) -> None:
    """Say something beside the result."""
    _say(f"ckpttool: {shown(message)}\n")


def error(message: str) -> None:
    """Say in one line why there is no result."""
    _say(f"ckpttool: error: {shown(' '.join(message.split()))}\n")


def usage(text: str) -> None:
    """Show how to ask, to whoever asked nothing."""
    _say(text.rstrip("\n") + "\n")


def _say(text: str) -> None:
    try:
        _write(sys.stderr, text)
    except OSError:  # nobody is left to tell
        return


def _write(stream: TextIO | None, text: str) -> None:
    """Write and flush, so that what goes wrong goes wrong here; None is a stream that was closed before we began."""
    if stream is None:
        return
    try:
        if hasattr(stream, "buffer"):
            _write_whole(stream, text)
        else:  # a text in memory, whatever a program put in place of stdout
            stream.write(text)
    except BrokenPipeError:
        _abandon(stream)  # the reader has seen enough (`| head -1`); the exit code stays the answer's
    except OSError:
        _abandon(stream)
        raise


def _abandon(stream: TextIO) -> None:
    """Let all that is still to be written go nowhere: a buffer keeps what failed, and fails again at the very end."""
    with suppress(OSError, ValueError):  # a text in memory has no file behind it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write_whole(stream: TextIO, text: str) -> None:
    """Write all of a text: a stream without a buffer (`python -u`) is one write(2), which takes 2 GiB at most."""
    stream.flush()
    encode = getincrementalencoder(stream.encoding or "utf-8")(stream.errors or "strict").encode
    for start in range(0, len(text), _CHUNK):
        left = memoryview(encode(text[start : start + _CHUNK]))
        while left:
            # None is a stream that does not wait, and is full.
            left = left[stream.buffer.write(left) or _full() :]
    stream.buffer.flush()


def _full() -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
