"""The result is written to stdout, and all other output to stderr."""

from __future__ import annotations

import errno
import os
import re
import sys
from codecs import getincrementalencoder
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, NoReturn, TextIO

from ckpttool.core.errors import WriteFailedError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ckpttool.core.domain.answers import Answered

_CHUNK = 1 << 20
"""Characters that are encoded together."""


_COLOUR_ANYWHERE = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
"""Variables that make rich use colours even if the output is not a terminal."""


class Ending:
    """The state of the output of a command line.

    It ensures that a script that requested JSON always receives a document.
    """

    result_begun = False
    error: str | None = None
    """The last error, in one line."""


ending = Ending()
"""The state of the current command line; a process may run several in turn."""

_TAKEN: ContextVar[list[Answered] | None] = ContextVar("taken", default=None)


@contextmanager
def taken() -> Iterator[list[Answered]]:
    """Suppress printing, and return the answers of the command to a caller in Python."""
    answers: list[Answered] = []
    token = _TAKEN.set(answers)
    try:
        yield answers
    finally:
        _TAKEN.reset(token)


def is_taken() -> bool:
    """Return whether a caller in Python receives the answers, in which case nothing is printed."""
    return _TAKEN.get() is not None


def take(answer: Answered) -> bool:
    """Pass an answer to the caller in Python; return False if the answer must be printed instead."""
    answers = _TAKEN.get()
    if answers is not None:
        answers.append(answer)
    return answers is not None


_DRY_RUN: ContextVar[bool] = ContextVar("dry_run", default=False)


@contextmanager
def dry_run(*, requested: bool) -> Iterator[None]:
    """If requested, prevent a command from writing the files that its options name."""
    token = _DRY_RUN.set(requested)
    try:
        yield
    finally:
        _DRY_RUN.reset(token)


def is_dry_run() -> bool:
    """Return whether `--dry-run` is set."""
    return _DRY_RUN.get()


def result(*pieces: str) -> None:
    """Write the result; it must be complete before its first byte is written.

    Raises:
        WriteFailedError: The result could not be written, for example because the disk is full. A closed pipe is not an
        error.
    """
    if is_taken():
        return
    ending.result_begun = True
    with _failure_text():
        _write(sys.stdout, *pieces, "\n")


def table(renderable: RenderableType) -> None:
    """Write a result that is laid out for people; markup in names is printed literally."""
    from ckpttool.core.render.text import Summary

    width = _width()
    if isinstance(renderable, Summary) and width is not None and not _is_coloured():
        text = renderable.plain()
        if all(len(line) <= width for line in text.split("\n")):
            result(text)
            return
    result(_drawn(renderable, width))


def _drawn(renderable: RenderableType, width: int | None) -> str:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, width=width)
    with _failure_text(), console.capture() as captured:
        console.print(renderable, crop=False)
    # rich pads every line of a table to its width, which disturbs grep and copying.
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def help_page(text: str) -> None:
    """Write a help text; on a terminal with colours, headings are bold and options and commands cyan."""
    if _is_terminal() and _shows_colours():
        text = re.sub(r"(?m)^(?:Usage|[A-Z][A-Za-z ]*):", "\x1b[1m\\g<0>\x1b[0m", text)
        text = re.sub(r"(?m)^  (-\S.*?(?=  |$)|[A-Za-z-]+(?=  ))", "  \x1b[36m\\g<1>\x1b[0m", text)
    result(text)


def page(markdown: str) -> None:
    """Write a page of the manual: formatted on a terminal, in a pager if it does not fit; as Markdown elsewhere."""
    if not _is_terminal():
        result(markdown.rstrip("\n"))
        return
    from shutil import get_terminal_size

    from ckpttool.core.render.laid_out import laid_out

    text = _drawn(laid_out(markdown), _width())
    is_short = text.count("\n") < get_terminal_size().lines
    if is_short or sys.stdin is None or not sys.stdin.isatty() or not _has_pager():
        result(text)
        return
    from pydoc import pager  # PAGER, else less or more

    os.environ.setdefault("LESS", "FRX")  # as in git: keep colours, and exit if the page fits on one screen
    os.environ.setdefault("LESSCHARSET", "utf-8")
    pager(f"{text}\n")


def _has_pager() -> bool:
    """Return whether the pager is installed; output to a missing pager would be lost."""
    from shutil import which

    words = (os.environ.get("MANPAGER") or os.environ.get("PAGER") or "").split()
    program = next((word for word in words if "=" not in word), None)  # variables may precede it
    return program is None or which(program) is not None


def _width() -> int | None:
    """Return the width for a result, or None if rich takes it from the terminal or the environment.

    If stdout is not a terminal, lines are not wrapped: `grep` needs complete lines, and rich would use the width of
    stdin.
    """
    from ckpttool.core.render.text import UNLIMITED

    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    return None if _is_terminal() else UNLIMITED


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _is_coloured() -> bool:
    return _is_terminal() or not _COLOUR_ANYWHERE.isdisjoint(os.environ)


@contextmanager
def _failure_text() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailedError(f"the result could not be written: {error.strerror or error}") from None


def note(message: str) -> None:
    """Write a note to stderr."""
    from ckpttool.core.render.escape import shown

    _say(f"ckpttool: {shown(message)}\n")


def looking_at(place: str | None, *, quiet: bool, more: str | None = None) -> None:
    """Report which tree is read if it differs from the requested path. `more` has the details of verbose mode."""
    if quiet:
        return
    if place is not None:
        note(f"checking {place}")
    if more is not None:
        note(more)


def error(message: str) -> None:
    """Report in one line why there is no result; on a terminal, the line is wrapped between words."""
    from ckpttool.core.render.escape import shown

    line = " ".join(message.split())
    if not is_taken():
        ending.error = line
    text = f"ckpttool: error: {shown(line)}"
    if sys.stderr is not None and sys.stderr.isatty():
        from shutil import get_terminal_size
        from textwrap import fill

        columns = get_terminal_size().columns
        text = fill(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    if _coloured():
        text = text.replace("error:", "\x1b[1;31merror:\x1b[0m", 1)
    _say(f"{text}\n")


def _coloured() -> bool:
    """Return whether stderr is a terminal that supports colours and the user has not disabled them."""
    return _shows_colours() and sys.stderr is not None and sys.stderr.isatty()


def _shows_colours() -> bool:
    """Return whether the environment allows colours on a terminal."""
    return not (os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb").lower() in {"", "dumb", "unknown"})


def usage(text: str) -> None:
    """Show the usage, if the command line is empty."""
    _say(text.rstrip("\n") + "\n")


def _say(text: str) -> None:
    try:
        _write(sys.stderr, text)
    except OSError:  # the reader has closed the pipe
        return


def _write(stream: TextIO | None, *pieces: str) -> None:
    """Write and flush, so that errors occur here. `stream` is None if it was closed before the start."""
    if stream is None or is_taken():
        return
    try:
        if hasattr(stream, "buffer"):
            _write_all(stream, pieces)
        else:  # a text in memory, or any other replacement of stdout by the program
            stream.write("".join(pieces))
    except BrokenPipeError:
        _abandon(stream)  # the reader has seen enough (`| head -1`); the exit code is still that of the answer
    except OSError:
        _abandon(stream)
        raise


def _abandon(stream: TextIO) -> None:
    """Discard pending output. Otherwise the buffer keeps the data and fails again at exit."""
    with suppress(OSError, ValueError):  # a stream in memory has no file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write_all(stream: TextIO, pieces: Iterable[str]) -> None:
    """Write a complete text, a megabyte at a time: without a buffer (`python -u`), write(2) accepts at most 2 GiB."""
    stream.flush()
    encode = getincrementalencoder(stream.encoding or "utf-8")(stream.errors or "strict").encode
    for chunk in _chunks(pieces):
        remaining = memoryview(encode(chunk))
        while remaining:
            # None: the stream is non-blocking, and full.
            remaining = remaining[stream.buffer.write(remaining) or _full() :]
    stream.buffer.flush()


def _chunks(pieces: Iterable[str]) -> Iterator[str]:
    """Join small pieces and split large ones into chunks."""
    waiting: list[str] = []
    length = 0
    for piece in pieces:
        for start in range(0, len(piece), _CHUNK):
            waiting.append(piece[start : start + _CHUNK])
            length += len(waiting[-1])
            if length >= _CHUNK:
                yield "".join(waiting)
                waiting, length = [], 0
    yield "".join(waiting)


def _full() -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
