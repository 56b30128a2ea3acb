"""The truth about a tree, kept by whoever broke it: what each shard holds, and at which level that can be seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, product
from pathlib import Path
from typing import Literal

from tests.support.reference_choice import pick
from tests.support.reference_retention import Kept
from tests.support.trees import TreeBuilder

WORLD = 3
"""The fewest of which one that differs is outvoted; and no run on fewer ranks is a whole fraction of it."""

Level = Literal["structure", "checksum"]
Save = tuple[int, int]
"""Run and step."""
Place = tuple[int, int, int]
"""Run, step and rank: where a shard belongs."""


class Kind(Enum):
    """What a shard is, by what somebody did to it."""

    WHOLE = "whole"
    ROTTEN = "rotten"
    """Bits of weights flipped: nothing but a checksum shows it."""
    TWIN = "twin"
    """Another rank's or run's shard of the same step: shows only where siblings happen to know better."""
    BENT = "bent"
    """A bit outside the weights flipped: shows beside two ranks that are as they were."""
    BROKEN = "broken"
    """Cut, or of another step: every level shows it."""


class Tells(Enum):
    """What a shard says about its step."""

    TRUTH = "truth"
    NOTHING = "nothing"
    """Or what its label shows to be wrong."""
    TRUTH_OR_NOTHING = "truth or nothing"
    ANYTHING = "anything"


@dataclass(frozen=True)
class Shard:
    """One file, as it lies there now."""

    data: bytes
    kind: Kind = Kind.WHOLE
    tells: Tells = Tells.TRUTH


def is_other_than_sealed(shard: Shard, seal: bytes) -> bool:
    """Tell whether a shard is neither what was sealed nor that with one bit of its weights flipped.

    A seal tells sizes and tensors too, so headers alone may show it.
    """
    bits = sum((now ^ then).bit_count() for now, then in zip(shard.data, seal, strict=False))
    return shard.data != seal and (shard.kind is not Kind.ROTTEN or len(seal) != len(shard.data) or bits != 1)


class Model(ABC):
    """What is to be known of a tree in order to judge what is said of it and done to it."""

    tree: TreeBuilder
    unfinished: set[str]
    """Temporary files that lie there: nobody may change the tree."""

    @abstractmethod
    def rows(self) -> list[Kept]:
        """Return what is there, in the reference's words, but for what only some trees show."""

    @abstractmethod
    def doubtful(self) -> set[Save]:
        """Return the saves whose damage only some trees show without a checksum."""

    @abstractmethod
    def rotten(self) -> set[Save]:
        """Return the saves with flipped bits of weights: where all bytes are read, only a copy of them shows it."""

    @abstractmethod
    def misread(self) -> dict[Save, list[int | None]]:
        """Return the saves that may be taken for another step, or for one of no known step, with all it may be."""

    @abstractmethod
    def is_tangled(self) -> bool:
        """Tell whether damage hides which run saved what, so that nobody can say which answers are right."""

    def is_unsure(self) -> bool:
        """Tell whether not even names and steps are certain."""
        return self.is_tangled() or bool(self.misread())

    @abstractmethod
    def spelled(self, save: Save) -> str:
        """Return the name that `--checkpoint` takes."""

    @abstractmethod
    def paths(self, save: Save) -> set[str]:
        """Return the files of a save that are there, relative to the checkpoint folder."""

    @abstractmethod
    def forget(self, save: Save) -> None:
        """Take note that it was pruned."""

    @abstractmethod
    def seal(self, save: Save) -> None:
        """Take note that it was sealed; what was sealed before stays."""

    @abstractmethod
    def reread(self) -> None:
        """Take note of what a prune or a repair wrote into the trainer's own records."""

    @abstractmethod
    def manifest(self, save: Save) -> Path:
        """Return where its manifest is, if it has one."""


def seen_at(rows: Iterable[Kept], level: Level) -> list[Kept]:
    """Return the rows as a look of this level must see them."""
    return [replace(row, damaged=row.damaged or (level == "checksum" and row.rotten)) for row in rows]


MOST_READINGS = 64


def readings(
    rows: Sequence[Kept], misread: Mapping[Save, Sequence[int | None]], doubtful: Collection[Save] = ()
) -> list[list[Kept]] | None:
    """Return every way in which a tree may rightly be read, in the order of the rows; None where those are too many."""
    ways = []
    for row in rows:
        save = (row.run, row.step)
        read = [row]
        if save in misread:  # a step that is read at all is told
            read = [
                replace(row, told=step is not None, step=row.step if step is None else step) for step in misread[save]
            ]
        damaged = [replace(one, damaged=True) for one in read] if save in doubtful else []
        ways.append([*read, *damaged])
    found = list(islice(product(*ways), MOST_READINGS + 1))
    return [list(one) for one in found] if len(found) <= MOST_READINGS else None


def right_picks(
    rows: Sequence[Kept], doubtful: Collection[int], *, ignore_health: bool, require_health: bool
) -> Iterator[int | None]:
    """Return all that may be chosen, by index: the newest good one, or where that is doubtful, also the next."""
    rows = list(rows)
    while True:
        best = pick(rows, world=WORLD, ignore_health=ignore_health, require_health=require_health)
        index = next((number for number, row in enumerate(rows) if row is best), None)
        yield index
        if index is None or index not in doubtful:
            return
        rows[index] = replace(rows[index], damaged=True)


def nearest(save: Save, saves: Iterable[Save]) -> list[Save]:
    """Return the two that may testify about a save: neighbours in its run, on both sides where it has some."""
    saves = sorted(saves)
    before = [one for one in saves if one < save and one[0] == save[0]][::-1]
    after = [one for one in saves if one > save and one[0] == save[0]]
    earlier = [one for one in saves if one[0] < save[0]][::-1]
    return [*before[:1], *after[:1], *before[1:2], *after[1:2], *earlier[:1]][:2]
