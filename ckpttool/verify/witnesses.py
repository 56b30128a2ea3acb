"""Which other checkpoints can say something about one: those of the same training, nearest first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.shard import FormatName
from ckpttool.domain.units import Step
from ckpttool.domain.verdict import ShardReport

MOST_WITNESSES = 2
"""One may be damaged itself, or stand on the other side of a change; more would only cost time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Headers of another checkpoint."""

    reports: tuple[ShardReport, ...]
    older: bool
    """Whether it was saved before the one that is judged."""
    same_run: bool
    """Whether the same start of the training wrote it: between two starts the configuration may change."""


class Neighbours:
    """The checkpoints of a tree by what they can say about each other: sorted once, however many ask."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Take all of the tree, in the order of the inventory: by run, then by step."""
        self._trainings: dict[_Kind, _Training] = {}
        for checkpoint in checkpoints:
            self._trainings.setdefault(_kind(checkpoint), _Training()).add(checkpoint)

    def witnesses(self, checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
        """Return the checkpoints to compare with: the nearest of the same run, else an earlier run's last."""
        training = self._trainings.get(_kind(checkpoint), _Training())
        own_run = training.runs.get(checkpoint.run, _Run())
        at = own_run.places.get(checkpoint.name, len(own_run.saved))
        before, after = own_run.saved[max(0, at - MOST_WITNESSES) : at], own_run.saved[at + 1 : at + 1 + MOST_WITNESSES]
        earlier_runs = [run.saved[-1] for run in islice(training.before(checkpoint.run), 1)]
        nearest = (*before[-1:], *after[:1], *before[-2:-1], *after[1:2], *earlier_runs)
        return nearest[:MOST_WITNESSES]

    def earlier(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint that the training passed before this one; None where none is, or no step is known.

        A resumed run went on from an earlier run's checkpoint; what that run saved later is another branch.
        """
        training = self._trainings.get(_kind(checkpoint))
        if checkpoint.step is None or training is None:
            return None
        for run in training.before(checkpoint.run + 1):
            steps = run.steps()
            if (at := bisect_left(steps, checkpoint.step)) > 0:
                return run.by_step[steps[at - 1]]
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
        self.by_step: dict[Step, Checkpoint] = {}
        self._steps: list[Step] | None = None

    def add(self, checkpoint: Checkpoint) -> None:
        self.places.setdefault(checkpoint.name, len(self.saved))
        self.saved.append(checkpoint)
        if checkpoint.step is not None:
            self.by_step.setdefault(checkpoint.step, checkpoint)

    def steps(self) -> list[Step]:
        """Return the known steps, ascending."""
        if self._steps is None:
            self._steps = sorted(self.by_step)
        return self._steps


class _Training:
    """All runs that wrote checkpoints of one kind."""

    def __init__(self) -> None:
        self.runs: dict[int, _Run] = {}
        self._numbers: list[int] | None = None

    def add(self, checkpoint: Checkpoint) -> None:
        self.runs.setdefault(checkpoint.run, _Run()).add(checkpoint)

    def before(self, number: int) -> Iterator[_Run]:
        """Yield the runs below a number, the last first."""
        if self._numbers is None:
            self._numbers = sorted(self.runs)
        for at in range(bisect_left(self._numbers, number) - 1, -1, -1):
            yield self.runs[self._numbers[at]]
