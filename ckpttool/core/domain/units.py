"""Distinct types for numbers that must not be confused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NewType

Step = NewType("Step", int)
"""Global step: data batches consumed since the training began, including skipped batches."""

STEP_DIGITS = 18
"""Maximum number of digits. Steps have fewer, and int() of a million digits takes seconds."""


def is_count(text: str) -> bool:
    """Return whether a word is a plausible integer; int() rejects thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= STEP_DIGITS


Rank = NewType("Rank", int)
"""Global rank of a process, from 0."""

ByteCount = NewType("ByteCount", int)
"""A size in bytes."""


_MOST_RANGES = 12
"""Maximum number of ranges, about two lines; for thousands of scattered ranks, use the JSON output."""


def on_ranks(ranks: Sequence[int], *, everything: bool = False) -> str:
    """Format ranks, ascending, as ranges that Slurm and MPI accept: `ranks 0, 2-3`; without limit if `everything`."""
    return _in_ranges("rank", ranks, len(ranks) if everything else _MOST_RANGES)


def on_nodes(ranks: Sequence[int], per_node: int, *, everything: bool = False) -> str:
    """Format the nodes of ranks, and whether all ranks of a node are included: `all of node 8`, `on nodes 0, 2-3`."""
    nodes = sorted({rank // per_node for rank in ranks})
    named = _in_ranges("node", nodes, len(nodes) if everything else _MOST_RANGES)
    return f"all of {named}" if len(ranks) == per_node * len(nodes) else f"on {named}"


def on_lines(lines: Sequence[int]) -> str:
    """Name lines of a text, ascending, in ranges."""
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
    """Format a number of things: `1 step`, `2 steps`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def at_step(step: Step | None) -> str:
    """Format the step of a checkpoint, which may be unknown."""
    return "its step is unknown" if step is None else f"step {step}"


def step_and_name(step: Step | None, name: str) -> str:
    """Name a checkpoint by its step, then its name: `step 60 (_1-30_2)`; by its name alone if the step is unknown."""
    return name if step is None else f"step {step} ({name})"


def in_gib(nbytes: int) -> str:
    """Format an exact size: in bytes below a GiB."""
    return f"{nbytes / (1 << 30):,.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes:,} bytes"


def moment(seconds: float) -> str:
    """Format a time in seconds since 1970, in UTC and to the second: `2026-11-20T03:00:00Z`.

    Raises:
        OverflowError: The time is outside the calendar, which is possible for the time of a file.
    """
    from datetime import datetime, timedelta, timezone  # typer imports it anyway; library users may not need it

    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(seconds))
    return at.isoformat().replace("+00:00", "Z")


def moment_if_any(seconds: float) -> str | None:
    """Format a file's time as `moment` does; None if it is outside the calendar, since programs can set any time."""
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
"""Seconds in the smallest unit that is shown with tenths below ten: hours and days."""


def on_all(ranks: int) -> str:
    """Format the number of all ranks: `on all 8 ranks`, `on its only rank`."""
    return "on its only rank" if ranks == 1 else f"on all {ranks} ranks"


MAX_RANKS = 1 << 20
"""More than any training run has. The limit keeps a single name or option from setting the number of ranks that we
check."""
