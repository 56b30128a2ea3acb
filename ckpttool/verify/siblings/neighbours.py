"""Which other checkpoints can say something about one: those of the same training, nearest first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.progress import Progress
from ckpttool.domain.shard import FormatName
from ckpttool.domain.verdict import ShardReport

MOST_SIBLINGS = 2
"""One may be damaged itself, or stand on the other side of a change; more would only cost time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """Headers of another checkpoint."""

    reports: tuple[ShardReport, ...]
    older: bool
    """Whether it was saved before the one that is judged."""
    same_run: bool
    """Whether the same start of the training wrote it: between two starts the configuration may change."""


class Neighbours:
    """The checkpoints of a tree by what they can say about each other: sorted once, however many ask."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Take all of the tree, in the order of the inventory: by run, then by how far it came."""
        self._progress = Progress(checkpoints)
        self._trainings: dict[_Kind, _Training] = {}
        for checkpoint in checkpoints:
            training = self._trainings.setdefault(_kind(checkpoint), _Training())
            training.add(checkpoint, self._progress.of(checkpoint))

    def is_older(self, one: Checkpoint, other: Checkpoint) -> bool:
        """Tell whether one was saved before another: in an earlier run, or before the training came so far."""
        first, second = (self._progress.of(each) if each.label is None else each.step for each in (one, other))
        return (one.run, -1 if first is None else first) < (other.run, -1 if second is None else second)

    def siblings(self, checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
        """Return the checkpoints to compare with: the nearest of the same run, else an earlier run's last."""
        training = self._trainings.get(_kind(checkpoint), _Training())
        own_run = training.runs.get(checkpoint.run, _Run())
        at = own_run.places.get(checkpoint.name, len(own_run.saved))
        before, after = own_run.saved[max(0, at - MOST_SIBLINGS) : at], own_run.saved[at + 1 : at + 1 + MOST_SIBLINGS]
        earlier_runs = [run.saved[-1] for run in islice(training.before(checkpoint.run), 1)]
        nearest = (*before[-1:], *after[:1], *before[-2:-1], *after[1:2], *earlier_runs)
        return nearest[:MOST_SIBLINGS]

    def earlier(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint that the training passed before this one; None where none is, or no step is known.

        A resumed run went on from an earlier run's checkpoint; what that run saved later is another branch.
        """
        training = self._trainings.get(_kind(checkpoint))
        place = self._progress.of(checkpoint)
        if place is None or training is None:
            return None
        for run in training.before(checkpoint.run + 1):
            places = run.ascending()
            if (at := bisect_left(places, place)) > 0:
                return run.by_place[places[at - 1]]
        return None


_Kind = tuple[str, FormatName, int | None]


def _kind(checkpoint: Checkpoint) -> _Kind:
    return checkpoint.prefix, checkpoint.format, checkpoint.topology.world_size


class _Run:
    """What one start of a training saved."""

    def __init__(self) -> None:
        self.saved: list[Checkpoint] = []
        self.places: dict[str, int] = {}
        """Where in `saved` a name stands, the first time."""
        self.by_place: dict[int, Checkpoint] = {}
        """By how far the training was."""
        self._ascending: list[int] | None = None

    def add(self, checkpoint: Checkpoint, place: int | None) -> None:
        self.places.setdefault(checkpoint.name, len(self.saved))
        self.saved.append(checkpoint)
        if place is not None:
            self.by_place.setdefault(place, checkpoint)

    def ascending(self) -> list[int]:
        """Return how far its saves were, as far as that is known."""
        if self._ascending is None:
            self._ascending = sorted(self.by_place)
        return self._ascending


class _Training:
    """All runs that wrote checkpoints of one kind."""

    def __init__(self) -> None:
        self.runs: dict[int, _Run] = {}
        self._numbers: list[int] | None = None

    def add(self, checkpoint: Checkpoint, place: int | None) -> None:
        self.runs.setdefault(checkpoint.run, _Run()).add(checkpoint, place)

    def before(self, number: int) -> Iterator[_Run]:
        """Yield the runs below a number, the last first."""
        if self._numbers is None:
            self._numbers = sorted(self.runs)
        for at in range(bisect_left(self._numbers, number) - 1, -1, -1):
            yield self.runs[self._numbers[at]]
