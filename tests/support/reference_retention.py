"""The rule for letting checkpoints go once more, as plainly as it can be said: the judge of the real one.

Written from the specification alone, over plain rows, and slow. It shares no line with the code that it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.support.reference_choice import Save, done_again, left_behind

Looked = Literal["auto", "structure", "checksum"]


@dataclass(frozen=True, kw_only=True)
class Kept(Save):
    """A save, and what only its content shows."""

    sealed: bool = False
    """Whether there are checksums to compare with."""
    rotten: bool = False
    """Whether its content is damaged and its headers are not."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be kept."""

    last: int
    every: int | None = None
    healthy: int = 0
    drop_abandoned: bool = False
    looked: Looked = "auto"


def newer(one: Kept, other: Kept) -> bool:
    """Whether `one` was saved after `other`."""
    return (one.run, one.step) > (other.run, other.step)


def whole(save: Kept, *, world: int) -> bool:
    """Whether names and headers say so."""
    return save.ranks == set(range(world)) and not save.damaged


def proven(save: Kept, saves: Sequence[Kept], wish: Wish, *, world: int) -> bool:
    """Whether a training can go on from it, having looked as hard as was wished."""
    read = wish.looked == "checksum" or (wish.looked == "auto" and save.sealed)
    if read and save.rotten:
        return False
    on_course = not left_behind(save, saves) and not done_again(save, saves)
    return whole(save, world=world) and not save.unhealthy and on_course


def replaced(save: Kept, by: Sequence[Kept], times: int) -> bool:
    """Whether so many of these are proven at least as well; a seal that nobody has compared counts as it can."""
    return len([one for one in by if one.sealed or not save.sealed]) >= times


def may_go(save: Kept, saves: Sequence[Kept], wish: Wish, *, world: int) -> bool:
    """Whether a policy lets it go, whatever else may rest on it."""
    if not whole(save, world=world) or (left_behind(save, saves) and not wish.drop_abandoned):
        return False
    good = [one for one in saves if proven(one, saves, wish, world=world)]
    if not replaced(save, [one for one in good if newer(one, save)], wish.last):
        return False
    if left_behind(save, saves) or done_again(save, saves) or save.unhealthy:
        return True
    if not save.unmeasured:
        well = [one for one in good if newer(one, save) and not one.unmeasured]
        if not replaced(save, well, wish.healthy):
            return False
    if wish.every is None or save.step < wish.every:
        return True
    same = [one for one in good if (one.batch, one.step // wish.every) == (save.batch, save.step // wish.every)]
    ahead = [one for one in same if one.step < save.step or (one.step == save.step and one.run > save.run)]
    return replaced(save, ahead, 1)
