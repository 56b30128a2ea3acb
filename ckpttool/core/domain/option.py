"""Command-line options for a question's fields, defined by annotations so that commands need not repeat them.

`core/commands/options.py` converts annotations to typer's options, and fills the question. Nothing here is evaluated in
a program that uses the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

LAYOUTS: Final = "{layouts}"
"""Placeholder in a help text for the names of all layouts, which trainers define."""

WITHOUT_BATCH_SIZE: Final = "{without batch size}"
"""Placeholder for the trainers whose shards do not contain the batch size."""

UNSET: Final = object()
"""Marker that the field's default applies."""


QUESTION: Final = "question"
"""Annotates a field that is itself a question, whose options replace the field. An optional question is None if none of
its options is given."""


class Option(NamedTuple):
    """An option or an argument of a command."""

    names: str
    """`--verbose -v`, `--on/--off`; an argument has the name that help shows: `[DIR]`."""
    help: str
    heading: str | None = None
    """The heading under which help shows the option; None for Output."""
    metavar: str | None = None
    """The placeholder for the value in help; None for N, X, or the choices."""
    least: float | None = None
    most: float | None = None
    unit: str | None = None
    """For a time, the unit of a plain number (s, m, h, d); `-` if a unit is required."""
    into: str | None = None
    """The unit of the field; None if it is the unit of a plain number."""
    default: object = UNSET
    """The command line's default, if it differs from the library's."""
    shown: str | None = None
    """The default that help shows; if empty, help shows none. None for the actual default."""
    completes: Literal["checkpoints", "codes", "layouts"] | None = None
    """The shell completion; for layouts, the value must be one of them."""
    once: bool = False
    """Whether it is an error to give the option twice, so that the last value does not win silently."""
    parse: Callable[[Any], Any] | None = None
    """Converts a typed value to the field. It raises `UsageError`."""
    typed: object = str | None
    """The argument of `parse`."""
    also: str | None = None
    """A second field that the option sets; `parse` then returns two values."""
