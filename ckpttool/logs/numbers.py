"""Numbers as trainers print them, and nothing that only looks like one."""

from __future__ import annotations

import re

# Each digit can be matched in one way only: two would take hours for a torn line of a million of them.
_DECIMAL = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_TWO_NUMBERS = re.compile(rb"[\d.eE+-]+(?:\s+[\d.eE+-]+)+")
_NO_VALUE = frozenset({b"", b"none", b"unavailable", b"null"})


class UnreadableError(ValueError):
    """The text is no number; the message says why."""


def number(text: bytes) -> float | None:
    """Return the number, with or without brackets around it; NaN and infinity are numbers, `None` is None.

    Raises:
        UnreadableError: It is something else. `[1 31049]` is 1.31049 or 131049 with a digit or the point lost in
            printing: nobody can tell, so nobody may guess.
    """
    bare = text.strip().removeprefix(b"[").removesuffix(b"]").strip()
    if _DECIMAL.fullmatch(bare):
        return float(bare)
    if bare.lower() in _NO_VALUE:
        return None
    if _TWO_NUMBERS.fullmatch(bare):
        raise UnreadableError("has lost its decimal point or a digit")
    raise UnreadableError("is no number")
