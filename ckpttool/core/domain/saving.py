"""What our own writer saves of a training, and how a trainer's layout would have it named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import Rank, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """How far a training is at a save."""

    step: Step
    """Data batches consumed, whether their updates were applied or dropped."""
    applied: int
    """Updates applied."""
    epoch: int
    """Epochs begun, from 1."""
    step_in_epoch: int
    """Batches of this epoch, from 1; 0 where none was consumed yet."""
    loss_scale: float
    """1 where there is no loss scaler."""
    global_batch_size: int | None
    """Samples a batch over all ranks; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLabel:
    """What the names of a save's files tell apart."""

    prefix: str
    run: int
    """How many starts of the training saved here before: 0 for the first, which has no suffix."""
    epoch: int
    step: int
    """In the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedScalar:
    """A number that is saved among the tensors."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    """Of one element."""
    value: int | float


class SaveLayout(Protocol):
    """A trainer's arrangement of files, in which our own writer saves."""

    @property
    def name(self) -> str:
        """What `--layout` and JSON call it."""
        ...

    @property
    def folder(self) -> str:
        """Where the tree is, below the output folder."""
        ...

    @property
    def health_file(self) -> str:
        """Where the health of saves is recorded, below the output folder."""
        ...

    def objection(self, prefix: str) -> str | None:
        """Say why a prefix would make names that could be read in two ways; None: it does not."""
        ...

    def rank_folder(self, rank: Rank) -> str:
        """Return where a rank saves, relative to the tree."""
        ...

    def next_run(self, names: Iterable[str], prefix: str, rank: Rank) -> int:
        """Return the number of this start, by what is in a rank's folder."""
        ...

    def leftovers(self, names: Iterable[str], prefix: str, rank: Rank) -> list[str]:
        """Return what of these a writer of this rank left that was killed."""
        ...

    def label(self, prefix: str, run: int, progress: SaveProgress) -> SaveLabel:
        """Return what a save is to be called by."""
        ...

    def parsed(self, file: str) -> SaveLabel | None:
        """Return what the name of rank 0's file says; None if it is none of a save."""
        ...

    def checkpoint(self, label: SaveLabel) -> str:
        """Return the save's name, as commands take it."""
        ...

    def manifest(self, label: SaveLabel) -> str:
        """Return the path of its manifest, relative to the tree, whether it is sealed or not."""
        ...

    def shard(self, label: SaveLabel, rank: Rank) -> str:
        """Return the path of a rank's file, relative to the tree."""
        ...

    def temporary(self, label: SaveLabel, rank: Rank) -> str:
        """Return the name, in the same folder, under which it is written."""
        ...

    def scalars(self, progress: SaveProgress) -> tuple[SavedScalar, ...]:
        """Return what is saved of the progress among the tensors."""
        ...

    def progress(self, scalars: dict[str, int | float]) -> SaveProgress | None:
        """Read that back; None where something is missing."""
        ...

    def records(self, label: SaveLabel, rank: Rank) -> tuple[tuple[str, bytes], ...]:
        """Return the records that name a save as the last, with their paths, relative to the tree."""
        ...

    def with_health(self, old: bytes | None, label: SaveLabel, health: Health) -> bytes:
        """Return the health file with what a save was found to be.

        Raises:
            ValueError: The old one is not what the trainer writes.
        """
        ...
