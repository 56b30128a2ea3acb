"""The rule for choosing a checkpoint once more, as plainly as it can be said: the judge of the real one.

Written from the specification alone, over plain rows, and slow. It shares no line with the code that it judges.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class Save:
    """One save of one run, as much of it as is on disk."""

    run: int
    step: int
    ranks: frozenset[int]
    damaged: bool = False
    unhealthy: bool = False
    unmeasured: bool = False
    told: bool = True
    """Whether a shard tells the step; else nobody knows that the run came so far."""
    batch: int | None = 8
    """Samples in each of the batches that its step counts."""
    left: bool = False
    """Whether the tracker of the newer layout says that somebody went back behind it."""

    @property
    def name(self) -> str:
        """As `--checkpoint` takes it, with a data sink of one batch."""
        return f"_{self.run}-{self.step}_1" if self.run else f"{self.step}_1"


def sizes_differ(saves: Sequence[Save]) -> bool:
    """Whether two steps of the same number may be two places."""
    return len({save.batch for save in saves} - {None}) > 1


def far(save: Save, saves: Sequence[Save]) -> int | None:
    """How far the training was: by its steps where they all count the same, else by its samples if they are known."""
    if not sizes_differ(saves):
        return save.step
    return None if save.batch is None else save.step * save.batch


def left_behind(save: Save, saves: Sequence[Save]) -> bool:
    """A later run ended before this place: somebody went back."""
    if save.left:
        return True
    here = far(save, saves)
    for run in {other.run for other in saves if other.told and other.run > save.run}:
        places = [far(other, saves) for other in saves if other.told and other.run == run]
        if here is not None and all(place is not None and place < here for place in places):
            return True
    return False


def done_again(save: Save, saves: Sequence[Save]) -> bool:
    """A later run was at this place or before it: it did these steps anew, so somebody went back behind it."""
    here = far(save, saves)
    for other in saves:
        there = far(other, saves)
        if other.told and other.run > save.run and here is not None and there is not None and there <= here:
            return True
    return False


LONG = 10**10
"""Nanoseconds between two saves; what is nearer together may be one copy."""


def beyond_tracker(
    steps: Mapping[int, bool], times: Mapping[int, Sequence[int]], tracker: tuple[int, int] | None
) -> set[int]:
    """In the newer layout: what was left behind, of the saves ahead of the tracker.

    Left is what was there before the tracker was written, or partly. What came after it was cut off before its last
    write. Where times do not tell, one whole save may have been cut off so, and more were left behind.

    Args:
        steps: Every iteration, and whether the save was finished as far as names and records tell.
        times: When its shards were written.
        tracker: Which step it names, and when it was written.
    """
    if tracker is None:
        return set()
    tracked, written = tracker
    beyond = {step for step in steps if step > tracked}
    after = {step for step in beyond if times[step] and all(time - written >= LONG for time in times[step])}
    before = {step for step in beyond if any(written - time >= LONG for time in times[step])}
    apart = {
        step
        for step in before
        if all(written - time >= LONG for time in times[step]) or any(time - written >= LONG for time in times[step])
    }
    several = sum(1 for step in beyond - after if steps[step]) > 1
    return beyond - after if several else apart


def good(
    save: Save, saves: Sequence[Save], *, world: int, ignore_health: bool = False, require_health: bool = False
) -> bool:
    """Whether all ranks can resume from it and should."""
    if save.ranks != set(range(world)) or save.damaged or left_behind(save, saves):
        return False
    if ignore_health:
        return True
    return not save.unhealthy and not (save.unmeasured and require_health)


def pick(
    saves: Sequence[Save], *, world: int, ignore_health: bool = False, require_health: bool = False
) -> Save | None:
    """The newest good one: a later run before an earlier one, then the higher step; of what was done again, none."""
    fit = [
        save
        for save in saves
        if good(save, saves, world=world, ignore_health=ignore_health, require_health=require_health)
    ]
    course = [save for save in fit if not done_again(save, saves)]
    return max(course or fit, key=lambda save: (save.run, save.step), default=None)


def lost(saves: Sequence[Save], picked: Save) -> int:
    """Steps to be done again: up to the furthest one that nobody went back behind, in batches as the picked one's."""
    here = far(picked, saves) or 0
    places = [far(save, saves) for save in saves if save.told and not left_behind(save, saves)]
    ahead = max([place - here for place in places if place is not None], default=0)
    if not sizes_differ(saves):
        return max(0, ahead)
    if picked.batch is None:
        return max(0, *(save.step - picked.step for save in saves if save.told and not left_behind(save, saves)), 0)
    return math.ceil(Fraction(max(0, ahead), picked.batch))


def evidence(saves: Sequence[Save], going: Collection[tuple[int, int]], *, world: int) -> list[Save]:
    """Those of which others may be judged that stay: how far their run came, how many ranks it had, who went back."""
    staying = [save for save in saves if (save.run, save.step) not in going]
    found = []
    for save in saves:
        known = [other.step for other in saves if other.run == save.run and other.told]
        is_edge = save.told and save.step in {min(known), max(known)} and any(other.run < save.run for other in staying)
        shows_ranks = any(other.run == save.run and other.ranks != set(range(world)) for other in staying)
        if is_edge or shows_ranks or save.left:
            found.append(save)
    return found
