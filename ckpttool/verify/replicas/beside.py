"""What replicas say of checkpoints that are judged one after the other: each is read once, and remembered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from ckpttool.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.domain.finding import Finding, blocking
from ckpttool.domain.replicas import RecordedSlices
from ckpttool.domain.verdict import ShardReport
from ckpttool.verify.replicas.compare import (
    Compared,
    HeldTensors,
    Look,
    Place,
    SavedTensors,
    Tensors,
    compare_replicas,
    tensors_of,
)
from ckpttool.verify.siblings.neighbours import Neighbours

MOST_OTHERS = 8
"""Checkpoints that a comparison takes: of thousands of ranks without any replica each takes some 20 MB."""


class Reading(NamedTuple):
    """How a session reads."""

    read: Callable[[Checkpoint, Collection[Place] | None], Iterator[ShardReport]]
    """Reads another checkpoint's shards in these places; None: all that it will be asked for in its own turn."""
    slices: Callable[[Checkpoint], RecordedSlices | None]
    look: Look
    asked: Collection[CheckpointKey]
    """Checkpoints that are read in any case, so that to read them now costs nothing."""


class Replicas:
    """Compares checkpoints of one tree with replicas."""

    def __init__(self, neighbours: Neighbours, reading: Reading) -> None:
        """Take the checkpoints, and how to read them."""
        self._neighbours = neighbours
        self._reading = reading
        self._known: dict[CheckpointKey, Tensors] = {}
        self._read: set[CheckpointKey] = set()
        self.ahead: dict[CheckpointKey, list[ShardReport]] = {}
        """Reports of checkpoints whose turn is still to come."""

    def compare(
        self, checkpoint: Checkpoint, reports: Sequence[ShardReport], *, followed_by: Checkpoint | None
    ) -> Generator[ShardReport, None, tuple[Finding, ...]]:
        """Yield the reports of what else had to be read, and return what is to be said of the checkpoint.

        One other checkpoint is read where none is known; a second where the first leaves a doubt; more where they are
        to be read anyway.
        """
        own = tensors_of(reports)
        self.keep(checkpoint, own)
        if len({rank for rank, _ in own if rank is not None}) <= 1:
            return ()
        asked = {*self._reading.asked, *(() if followed_by is None else (followed_by.key,))}
        older, later = self._neighbours.in_line(checkpoint)
        recorded = self._reading.slices(checkpoint)
        while True:
            others = [*self._saved(checkpoint, older, older=True), *self._saved(checkpoint, later, older=False)]
            compared = compare_replicas(reports, others, recorded, self._reading.look)
            unread = [other for other in (*older, *later) if other.key not in self._read]
            following = self._following(unread, compared, len(others), asked)
            if following is None:
                return compared.findings
            tensors: dict[Place, HeldTensors] = {}
            ahead = self.ahead.setdefault(following.key, []) if following.key in asked else None
            for report in self._reading.read(following, own.keys() if ahead is None else None):
                tensors |= tensors_of((report,))
                if ahead is not None:
                    ahead.append(report)
                yield report
            self.keep(following, tensors)

    @staticmethod
    def _following(
        unread: Sequence[Checkpoint], compared: Compared, known: int, asked: Collection[CheckpointKey]
    ) -> Checkpoint | None:
        """Return which other checkpoint is to be read next; None where it would cost more than it may tell."""
        if known >= MOST_OTHERS or not unread:
            return None
        if not known or (known == 1 and blocking(compared.findings)):
            return unread[0]
        if not compared.is_open:
            return None
        return next((other for other in unread if other.key in asked), None)

    def keep(self, checkpoint: Checkpoint, tensors: Tensors) -> None:
        """Remember the tensors of a checkpoint that was read."""
        self._read.add(checkpoint.key)
        if tensors:
            self._known[checkpoint.key] = tensors
        while len(self._known) > MOST_OTHERS + 1:
            self._known.pop(next(iter(self._known)))

    def _saved(self, own: Checkpoint, others: Iterable[Checkpoint], *, older: bool) -> Iterator[SavedTensors]:
        for other in others:
            if (tensors := self._known.get(other.key)) is not None:
                yield SavedTensors(
                    name=other.name, step=other.step, older=older, same_run=other.run == own.run, shards=tensors
                )
