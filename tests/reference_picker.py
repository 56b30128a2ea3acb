"""The rule for choosing a checkpoint once more, as plainly as it can be said: the judge of the real one.

Written from the specification alone, over plain rows, and slow. It shares no line with the code that it judges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


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
    left: bool = False
    """Whether the tracker of the newer layout says that somebody went back behind it."""

    @property
    def name(self) -> str:
        """As `--checkpoint` takes it, with a data sink of one batch."""
        return f"_{self.run}-{self.step}_1" if self.run else f"{self.step}_1"


def left_behind(save: Save, saves: Sequence[Save]) -> bool:
    """A later run ended before this step: somebody went back."""
    if save.left:
        return True
    known = [other for other in saves if other.told]
    for run in {other.run for other in known if other.run > save.run}:
        if max(other.step for other in known if other.run == run) < save.step:
            return True
    return False


def beyond_tracker(steps: Collection[int], tracked: int | None) -> set[int]:
    """In the newer layout: one save ahead of the tracker was cut off before its last write, more were left behind."""
    if tracked is None:
        return set()
    beyond = {step for step in steps if step > tracked}
    return beyond if len(beyond) > 1 else set()


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
    """The newest good one: a later run before an earlier one, then the higher step."""
    best = None
    for save in saves:
        if not good(save, saves, world=world, ignore_health=ignore_health, require_health=require_health):
            continue
        if best is None or (save.run, save.step) > (best.run, best.step):
            best = save
    return best


def lost(saves: Sequence[Save], picked: Save) -> int:
    """Steps to be done again: up to the highest one that nobody went back behind."""
    ahead = [save.step - picked.step for save in saves if save.told and not left_behind(save, saves)]
    return max(0, *ahead, 0)


def evidence(saves: Sequence[Save], going: Collection[tuple[int, int]], *, world: int) -> list[Save]:
    """Those of which others may be judged that stay: how far their run came, how many ranks it had, who went back."""
    staying = [save for save in saves if (save.run, save.step) not in going]
    found = []
    for save in saves:
        known = [other.step for other in saves if other.run == save.run and other.told]
        is_end = save.told and save.step == max(known) and any(other.run < save.run for other in staying)
        shows_ranks = any(other.run == save.run and other.ranks != set(range(world)) for other in staying)
        if is_end or shows_ranks or save.left:
            found.append(save)
    return found
