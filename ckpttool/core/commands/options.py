"""Options that mean the same in every command, and how times, sizes and counts are typed.

Those of a tree are in `tree_options`: a command that looks at none need not wait for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.domain.units import STEP_DIGITS
from ckpttool.core.errors import UsageError

if TYPE_CHECKING:
    from fractions import Fraction

    from ckpttool.core.domain.data_position import BatchSegment

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = 1000 * 365 * _SECONDS["d"]
"""Seconds; a clock that adds more to a time leaves the calendar."""
_WORDS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_POWERS = "KMGTP"
_PART = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"


class Time(float):
    """A time, and how it was typed: another option may take the same number for another unit."""

    typed: str


def duration(bare: str | None, *, to: str | None = None, least: float = 0) -> Callable[[str], float]:
    """Return the parser of an option that takes a time.

    Args:
        bare: The unit of a number without one: s, m, h or d; None: there must be one.
        to: The unit of what is returned; that of a bare number, else seconds, where it is left out.
        least: The shortest time, in the same unit.
    """
    into = to or bare or "s"
    without = "" if bare is None else f"; a bare number is {_WORDS[bare]}"

    def parse(given: str | float) -> Time:
        text, unit = str(given), bare
        number = given if isinstance(given, float) else _number(text)  # a default, or from a file, is a number already
        if isinstance(given, str):
            # Units, each once and from the longest on: 1h30m.
            parts = re.findall(rf"({_PART})([smhdw])", text)
            units = "".join(unit for _, unit in parts)
            if parts and re.fullmatch(rf"(?:{_PART}[smhdw])+", text) and re.fullmatch("w?d?h?m?s?", units):
                number, unit = float(sum(float(part) * _SECONDS[part_unit] for part, part_unit in parts)), "s"
        if number is not None and not math.isfinite(number):
            raise typer.BadParameter(f"{text!r} is not a finite number")
        if number is None or unit is None:
            raise typer.BadParameter(f"{text!r} is no time such as 90s, 5m, 12h or 7d{without}")
        seconds = number * _SECONDS[unit] / _SECONDS[into]
        if seconds * _SECONDS[into] > _LONGEST:
            raise typer.BadParameter(f"{text!r} is longer than 1000 years")
        if seconds < least:
            raise typer.BadParameter(f"{text!r} is less than {least:g}{into}")
        time = Time(seconds)
        time.typed = text
        return time

    return parse


def _number(text: str) -> float | None:
    # Of what float() takes: no digits of other scripts, no _, nothing that is too small to be told from 0.
    number = r"-?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?(?:e\+?[0-9]{1,3}|e-[0-9]{1,2})?|inf|nan)"
    return float(text) if re.fullmatch(number, text, re.IGNORECASE) else None


def share(text: str) -> Fraction | int | None:
    """Parse `10%` as a fraction above 0 and up to 1, `50G` as bytes; None where it is neither."""
    from fractions import Fraction

    percent = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if percent is not None:
        return fraction if 0 < (fraction := Fraction(percent[1]) / 100) <= 1 else None
    size = re.fullmatch(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)([{_POWERS}])(?:i?B)?", text, re.IGNORECASE)
    if size is None:
        return None
    return int(Fraction(size[1]) * 1024 ** (1 + _POWERS.index(size[2].upper()))) or None


class Format(str, Enum):
    """How the result is written."""

    TABLE = "table"
    JSON = "json"


def finite(value: float | None) -> float | None:
    """Refuse `nan`, to which every comparison says no, and `inf`: the callback of every option that takes a number.

    Raises:
        BadParameter: The value is no number.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


FormatOpt = Annotated[Format, typer.Option("--format", help="How to write the result.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more: what was looked at, and all of it.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]
Segments = Annotated[
    list[str] | None,
    typer.Option(
        "--segment",
        metavar="STEPS:GBS",
        help="Past steps at another batch size, oldest first; repeat it.",
        rich_help_panel="Data position",
    ),
]


def segments(texts: list[str] | None) -> tuple[BatchSegment, ...]:
    """Parse `STEPS:GBS`.

    Raises:
        UsageError: One of them is not two whole numbers.
    """
    return tuple(_segment(text) for text in texts or ())


def _segment(text: str) -> BatchSegment:
    from ckpttool.core.domain.data_position import BatchSegment

    steps, _, batch = text.partition(":")
    if not (is_count(steps) and is_count(batch) and int(batch)):
        raise UsageError(f"--segment takes STEPS:GBS, such as 1000:512, not {text!r}")
    return BatchSegment(steps=int(steps), global_batch_size=int(batch))


def is_count(text: str) -> bool:
    """Tell whether a word is a whole number that any training can have reached; int() refuses thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= STEP_DIGITS
