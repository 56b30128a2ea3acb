"""Definitions of command-line options, as annotations on a question's fields, so that commands need not repeat them.

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
"""Marker for an unset value, so that the field's default applies."""


QUESTION: Final = "question"
"""Annotation of a field that is itself a question; its options replace the field.

An optional question is None if none of its options is given.
"""


class Option(NamedTuple):
    """An option or an argument of a command."""

    names: str
    """Names of the option, such as `--verbose -v` or `--on/--off`; for an argument, the name in the help: `[DIR]`."""
    help: str
    heading: str | None = None
    """Heading of the option in the help; None for Output."""
    metavar: str | None = None
    """Placeholder for the value in the help; None for N, X, or the choices."""
    least: float | None = None
    most: float | None = None
    unit: str | None = None
    """For a time, the unit of a number without a unit (s, m, h, d); `-` if a unit is required."""
    into: str | None = None
    """Unit of the field; None if it is the same as for a number without a unit."""
    default: object = UNSET
    """Default on the command line, if it differs from the library's."""
    shown: str | None = None
    """Default that the help shows; None for the actual default; if empty, the help shows no default."""
    completes: Literal["checkpoints", "codes", "layouts"] | None = None
    """Kind of shell completion; for layouts, the value must be one of them."""
    once: bool = False
    """Whether giving the option twice is an error, so that the last value does not win silently."""
    parse: Callable[[Any], Any] | None = None
    """Function that converts a typed value to the field; it raises `UsageError` for an invalid value."""
    typed: object = str | None
    """Type of the argument of `parse`."""
    also: str | None = None
    """Name of a second field that the option sets; `parse` then returns two values."""
