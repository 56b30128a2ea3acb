"""Distinct types for numbers that must not be confused, and functions that format numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NewType

Step = NewType("Step", int)
"""Global step: data batches consumed since the training began, including skipped batches."""

STEP_DIGITS = 18
"""Maximum number of digits of a step, because `int()` takes seconds for a million digits."""


def is_count(text: str) -> bool:
    """Return whether a word is an integer of plausible length; `int()` rejects thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= STEP_DIGITS


Rank = NewType("Rank", int)
"""Global rank of a process, from 0."""

ByteCount = NewType("ByteCount", int)
"""A size in bytes."""


_MOST_RANGES = 12
"""Maximum number of ranges in a text, about two lines; the JSON output has all ranks."""


def on_ranks(ranks: Sequence[int], *, everything: bool = False) -> str:
    """Format ascending ranks as ranges that Slurm and MPI accept: `ranks 0, 2-3`; `everything` removes the limit."""
    return _in_ranges("rank", ranks, len(ranks) if everything else _MOST_RANGES)


def on_nodes(ranks: Sequence[int], per_node: int, *, everything: bool = False) -> str:
    """Format the nodes of ascending ranks: `all of node 8` if every rank is included, otherwise `on nodes 0, 2-3`."""
    nodes = sorted({rank // per_node for rank in ranks})
    named = _in_ranges("node", nodes, len(nodes) if everything else _MOST_RANGES)
    return f"all of {named}" if len(ranks) == per_node * len(nodes) else f"on {named}"


def on_lines(lines: Sequence[int]) -> str:
    """Format ascending line numbers as ranges."""
    return _in_ranges("line", lines, _MOST_RANGES)


def _in_ranges(noun: str, numbers: Sequence[int], most: int) -> str:
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    ranges_shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    more = ["…"] if len(ranges) > most else []
    return f"{noun}s {', '.join([*ranges_shown, *more])}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: `1 step`, `2 steps`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def at_step(step: Step | None) -> str:
    """Format a checkpoint's step, which may be unknown."""
    return "its step is unknown" if step is None else f"step {step}"


def step_and_name(step: Step | None, name: str) -> str:
    """Format the step and the name of a checkpoint: `step 60 (_1-30_2)`; only the name if the step is unknown."""
    return name if step is None else f"step {step} ({name})"


def in_gib(nbytes: int) -> str:
    """Format an exact size, in bytes below one GiB."""
    return f"{nbytes / (1 << 30):,.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes:,} bytes"


def moment(seconds: float) -> str:
    """Format seconds since 1970 as a UTC time to the second: `2026-11-20T03:00:00Z`.

    Raises:
        OverflowError: The time is outside the calendar, which is possible for the time of a file.
    """
    from datetime import datetime, timedelta, timezone  # typer imports it anyway; library users may not need it

    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(seconds))
    return at.isoformat().replace("+00:00", "Z")


def moment_if_any(seconds: float) -> str | None:
    """Format a file's time like `moment`; None if it is outside the calendar, because programs can set any time."""
    try:
        return moment(seconds)
    except OverflowError:
        return None


def lasting(seconds: float) -> str:
    """Format a duration in the most readable unit: `45 s`, `42 min`, `2.5 h`, `12 d`."""
    for unit, length, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 48 * 3600), ("d", 86400, math.inf)):
        if seconds < most:
            tenths = length >= _TENTHS_FROM and seconds < 10 * length
            number = int(seconds / length * 10) / 10 if tenths else seconds // length
            return f"{number:g} {unit}"
    raise AssertionError(seconds)


_TENTHS_FROM = 3600
"""Seconds in the smallest unit that is shown with one decimal below ten: hours and days."""


def on_all(ranks: int) -> str:
    """Format the total number of ranks: `on all 8 ranks`, `on its only rank`."""
    return "on its only rank" if ranks == 1 else f"on all {ranks} ranks"


MAX_RANKS = 1 << 20
"""Maximum number of ranks, more than any training run has.

Because of the limit, a single name or option cannot make ckpttool check any number of ranks.
"""
