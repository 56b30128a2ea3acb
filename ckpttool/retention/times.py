"""Times of saves, for rules that count hours, days and weeks: which times are plausible, and the periods.

Copying a tree without its times makes all saves look as if they had been saved in one hour. Such a time is unknown, and
no rule may delete a checkpoint because of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from ckpttool.core.decide.lost import LEAST_SECONDS, paused
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.units import moment_if_any

NS = 1_000_000_000

COPIED_BYTES_PER_SECOND = 200 << 20
"""A single-file save that followed the save before it at this speed or faster may be a copy."""

FUTURE_NS = 24 * 3600 * NS
"""A time further in the future was set by a wrong clock."""


class Period(str, Enum):
    """A period of the calendar in UTC, so that the result is the same in all time zones and on all machines."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday to Sunday, as in ISO 8601."""

    def of(self, time_ns: int) -> str:
        """Return the name of the period that contains a time: `2026-11-20T03`, `2026-11-20` or `2026-W47`."""
        from datetime import datetime, timezone  # only a policy with periods needs it

        at = datetime.fromtimestamp(time_ns // NS, tz=timezone.utc)
        match self:
            case Period.HOUR:
                return at.strftime("%Y-%m-%dT%H")
            case Period.DAY:
                return at.strftime("%Y-%m-%d")
            case Period.WEEK:
                year, week, _ = at.isocalendar()
                return f"{year}-W{week:02d}"


class Saved(NamedTuple):
    """The time of a save in nanoseconds since 1970."""

    first: int
    """Time of the first file."""
    last: int
    """Time of the last file, which is the time of the save."""
    recorded: bool
    """Whether the trainer itself recorded the time, so that copying does not change it."""


def saved(checkpoint: Checkpoint) -> Saved | None:
    """Return the time of a save according to the trainer's record, or else to its files; None if unknown."""
    if checkpoint.committed_ns is not None:
        return Saved(checkpoint.committed_ns, checkpoint.committed_ns, recorded=True)
    times = [shard.modified_ns for shard in checkpoint.shards]
    known = [time for time in times if time is not None]
    return Saved(min(known), max(known), recorded=False) if known and len(known) == len(times) else None


def unknown_times(saves: Sequence[Checkpoint], now_ns: int | None) -> Mapping[CheckpointKey, str]:
    """Return the saves whose time is unknown, each with the reason.

    A time is plausible if it follows those of all earlier saves and precedes those of all later ones, and if nothing
    was written for some time before and after it.

    Args:
        saves: Saves of one lineage, in the order in which they were made, oldest first.
        now_ns: The current time; None for no comparison with it.
    """
    unknown: dict[CheckpointKey, str] = {}
    known: list[tuple[Checkpoint, Saved]] = []
    for save in saves:
        time = saved(save)
        if time is None or moment_if_any(time.last / NS) is None:
            unknown[save.key] = "no time is recorded for all of its files"
        elif now_ns is not None and time.last > now_ns + FUTURE_NS:
            unknown[save.key] = "the time of its files is in the future"
        else:
            known.append((save, time))
    for save, other in _out_of_order(known):
        unknown.setdefault(save.key, f"{other.name} has the same or a contradicting time")
    for (earlier, before), (later, after) in pairwise(known):
        if _position(earlier) != _position(later) and not _may_have_trained_between(later, before, after):
            reason = "{} was written immediately {} it, as in a copy without times"
            unknown.setdefault(earlier.key, reason.format(later.name, "after"))
            unknown.setdefault(later.key, reason.format(earlier.name, "before"))
    return unknown


def _out_of_order(known: Sequence[tuple[Checkpoint, Saved]]) -> list[tuple[Checkpoint, Checkpoint]]:
    """Return each save that is not later than all earlier saves, or not earlier than all later ones, with the other."""
    found = []
    for saves, sign in ((known, 1), (known[::-1], -1)):
        furthest: tuple[Checkpoint, Saved] | None = None
        for save, time in saves:
            if furthest is not None and sign * (time.last - furthest[1].last) <= 0:
                if _position(save) != _position(furthest[0]):
                    found.append((save, furthest[0]))
            else:
                furthest = save, time
    return found


def _may_have_trained_between(later: Checkpoint, before: Saved, after: Saved) -> bool:
    """Return whether training may have run between two saves: a copy writes one file after another without a pause."""
    if before.recorded or after.recorded:
        return True
    if len(later.shards) > 1:
        is_paused = paused((before.first, before.last), (after.first, after.last))
    else:
        is_paused = (after.last - before.last) / NS * COPIED_BYTES_PER_SECOND > (later.nbytes or 0)
    return is_paused and (after.last - before.last) / NS >= LEAST_SECONDS


def _position(save: Checkpoint) -> tuple[int, int | None]:
    """Return the run and the step, which are the same for one save in two formats."""
    return save.run, save.step
