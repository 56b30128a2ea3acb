"""The rules that count hours, days and weeks once more, as plainly as they can be said: the judge of the real ones.

Written from the specification alone, over plain rows. It shares no line with the code that it judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.support.reference_retention import Kept, Wish, newer, proven, replaced, whole


@dataclass(frozen=True, kw_only=True)
class Times:
    """What the rules of time are to keep."""

    within: float | None = None
    hourly: int = 0
    daily: int = 0
    weekly: int = 0


def hour(at: int) -> str:
    return time.strftime("%Y %j %H", time.gmtime(at))


def day(at: int) -> str:
    return time.strftime("%Y %j", time.gmtime(at))


def week(at: int) -> int:
    """Weeks since the first Monday after 1970-01-01, a Thursday."""
    return (at // 86400 + 3) // 7


def kept_by_time(save: Kept, saves: Sequence[Kept], at: Mapping[str, int], times: Times, wish: Wish) -> bool:
    """Whether a save that is good by its headers, and was saved at a known time, is kept by a rule of time."""
    good = [one for one in saves if proven(one, saves, wish, world=4)]
    hopeful = [one for one in saves if hopes(one, saves)]
    if times.within is not None and at[save.name] >= max(at[one.name] for one in hopeful) - times.within:
        return True
    rules: list[tuple[int, Callable[[int], object]]] = [
        (times.hourly, hour),
        (times.daily, day),
        (times.weekly, week),
    ]
    return any(number and _kept(save, good, at, wish, number=number, period=period) for number, period in rules)


def hopes(save: Kept, saves: Sequence[Kept]) -> bool:
    """Whether it is good as far as headers tell."""
    return proven(save, saves, Wish(last=1, looked="structure"), world=4) and whole(save, world=4)


def _kept(
    save: Kept,
    good: Sequence[Kept],
    at: Mapping[str, int],
    wish: Wish,
    *,
    number: int,
    period: Callable[[int], object],
) -> bool:
    mine = period(at[save.name])
    periods_after = {period(at[one.name]) for one in good if newer(one, save)} - {mine}
    beside = [one for one in good if newer(one, save) and period(at[one.name]) == mine]
    if len(periods_after) < number and not replaced(save, beside, 1):
        return True
    if len({period(at[one.name]) for one in good}) >= number:
        return False
    # The oldest good one. One that looked good and turned out rotten when it was read for this is not let go either.
    older = [one for one in good if newer(save, one)]
    read = wish.looked == "checksum" or (wish.looked == "auto" and save.sealed)
    return not older and (save in good or (read and save.rotten))
