"""Command-line options for the fields of a question: defined by the field's annotation, without a copy in a command.

`core/commands/options.py` converts it to typer's options, and fills the question. Nothing here is evaluated in a
program that uses the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

LAYOUTS: Final = "{layouts}"
"""Placeholder in a help text for the names of all layouts, which trainers define."""

WITHOUT_BATCH_SIZE: Final = "{without batch size}"
"""Placeholder for the trainers whose shards do not contain the batch size."""

UNSET: Final = object()
"""Marker: the field's default applies."""


QUESTION: Final = "question"
"""Annotates a field that is itself a question: its options replace the field. An optional question is None without
options."""


class Option(NamedTuple):
    """An option or an argument of a command."""

    names: str
    """`--verbose -v`, `--on/--off`; an argument is named as help shows it: `[DIR]`."""
    help: str
    heading: str | None = None
    """The heading under which help shows it; None: Output."""
    metavar: str | None = None
    """The placeholder for its value in help; None: N, X, or its choices."""
    least: float | None = None
    most: float | None = None
    unit: str | None = None
    """For a time: the unit of a plain number (s, m, h, d); `-`: a unit is required."""
    into: str | None = None
    """The unit of the field, if it differs; None: that of a bare number."""
    default: object = UNSET
    """The command line's default, if it differs from the library's."""
    shown: str | None = None
    """The default as help shows it; empty: not shown. None: the actual default."""
    completes: Literal["checkpoints", "codes", "layouts"] | None = None
    """The shell completion; for layouts, the value must be one of them."""
    once: bool = False
    """Whether it is an error to give it twice, so that the last one does not win silently."""
    parse: Callable[[Any], Any] | None = None
    """Converts a typed value to the field. It raises `UsageError`."""
    typed: object = str | None
    """The argument of `parse`."""
    also: str | None = None
    """A second field that it sets; `parse` then returns two values."""
