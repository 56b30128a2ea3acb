"""Saves of our own writer, and their names in a trainer's layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import Rank, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """The progress of a training run at a save."""

    step: Step
    """Data batches consumed, regardless of whether the updates were applied or dropped."""
    applied: int
    """Updates applied."""
    epoch: int
    """Number of the current epoch, from 1."""
    step_in_epoch: int
    """Batches consumed in this epoch; 0 if no batch has been consumed yet."""
    loss_scale: float
    """Loss scale; 1 if there is no loss scaler."""
    global_batch_size: int | None
    """Global batch size in samples; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLabel:
    """The parts of the names of a save's files."""

    prefix: str
    run: int
    """Number of earlier starts of the training that saved here: 0 for the first start, which has no suffix."""
    epoch: int
    step: int
    """Step within the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedScalar:
    """A number that is saved among the tensors."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    """Shape of one element."""
    value: int | float


class SaveLayout(Protocol):
    """A trainer's layout, as used by our own writer."""

    @property
    def name(self) -> str:
        """Name for `--layout` and JSON."""
        ...

    @property
    def folder(self) -> str:
        """Folder of the tree, below the output folder."""
        ...

    @property
    def health_file(self) -> str:
        """Health file of the saves, below the output folder."""
        ...

    def objection(self, prefix: str) -> str | None:
        """Return why a prefix would make names ambiguous; None if it would not."""
        ...

    def rank_folder(self, rank: Rank) -> str:
        """Return the folder in which a rank saves, relative to the tree."""
        ...

    def next_run(self, names: Iterable[str], prefix: str, rank: Rank) -> int:
        """Return the number of this start, from the files in a rank's folder."""
        ...

    def leftovers(self, names: Iterable[str], prefix: str, rank: Rank) -> list[str]:
        """Return the temporary names that a killed writer of this rank left behind."""
        ...

    def label(self, prefix: str, run: int, progress: SaveProgress) -> SaveLabel:
        """Return the label of a save."""
        ...

    def parsed(self, file: str) -> SaveLabel | None:
        """Parse the name of rank 0's file; return None if the name is not that of a save."""
        ...

    def checkpoint(self, label: SaveLabel) -> str:
        """Return the save's name, in the form that commands accept."""
        ...

    def manifest(self, label: SaveLabel) -> str:
        """Return the path of the save's manifest, relative to the tree, whether the save is sealed or not."""
        ...

    def shard(self, label: SaveLabel, rank: Rank) -> str:
        """Return the path of a rank's file, relative to the tree."""
        ...

    def temporary(self, label: SaveLabel, rank: Rank) -> str:
        """Return the temporary name, in the same folder, used while writing."""
        ...

    def scalars(self, progress: SaveProgress) -> tuple[SavedScalar, ...]:
        """Return the progress as scalars, which are saved with the tensors."""
        ...

    def progress(self, scalars: dict[str, int | float]) -> SaveProgress | None:
        """Read the progress from the scalars; return None if a value is missing."""
        ...

    def records(self, label: SaveLabel, rank: Rank) -> tuple[tuple[str, bytes], ...]:
        """Return the records that name a save as the last save, with their paths relative to the tree."""
        ...

    def with_health(self, old: bytes | None, label: SaveLabel, health: Health) -> bytes:
        """Return the health file with the health of a save added.

        Raises:
            ValueError: The old file does not have the trainer's form.
        """
        ...
