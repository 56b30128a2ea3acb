"""Saves by ckpttool's own writer, and their names in a trainer's layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import Rank, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """Progress of a training run at a save."""

    step: Step
    """Number of data batches consumed, whether the updates were applied or dropped."""
    applied: int
    """Number of updates applied."""
    epoch: int
    """Number of the current epoch, from 1."""
    step_in_epoch: int
    """Number of batches consumed in this epoch; 0 if no batch has been consumed yet."""
    loss_scale: float
    """Loss scale; 1 if there is no loss scaler."""
    global_batch_size: int | None
    """Global batch size in samples; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLabel:
    """Parts of the file names of a save."""

    prefix: str
    run: int
    """Number of earlier starts that saved in this folder; the first start has number 0, and no suffix."""
    epoch: int
    step: int
    """Step within the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedScalar:
    """A number that is saved as a tensor."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    """Shape of one element."""
    value: int | float


class SaveLayout(Protocol):
    """Interface of a trainer's layout, as used by ckpttool's own writer."""

    @property
    def name(self) -> str:
        """Name of the layout, for `--layout` and JSON."""
        ...

    @property
    def folder(self) -> str:
        """Folder of the tree, relative to the output folder."""
        ...

    @property
    def health_file(self) -> str:
        """Health file of the saves, relative to the output folder."""
        ...

    def objection(self, prefix: str) -> str | None:
        """Return why a prefix would make names ambiguous; None if it would not."""
        ...

    def rank_folder(self, rank: Rank) -> str:
        """Return the folder in which a rank saves, relative to the tree."""
        ...

    def next_run(self, names: Iterable[str], prefix: str, rank: Rank) -> int:
        """Return the number of this start, based on the files in a rank's folder."""
        ...

    def leftovers(self, names: Iterable[str], prefix: str, rank: Rank) -> list[str]:
        """Return the temporary files that a killed writer of this rank left behind."""
        ...

    def label(self, prefix: str, run: int, progress: SaveProgress) -> SaveLabel:
        """Return the label for a new save."""
        ...

    def parsed(self, file: str) -> SaveLabel | None:
        """Parse the name of rank 0's file; return None if the name is not that of a save."""
        ...

    def checkpoint(self, label: SaveLabel) -> str:
        """Return the name of a save, in the form that commands accept."""
        ...

    def manifest(self, label: SaveLabel) -> str:
        """Return the path of a save's manifest, relative to the tree, whether or not the manifest exists."""
        ...

    def shard(self, label: SaveLabel, rank: Rank) -> str:
        """Return the path of a rank's file, relative to the tree."""
        ...

    def temporary(self, label: SaveLabel, rank: Rank) -> str:
        """Return the path of a rank's file while it is being written, in the same folder."""
        ...

    def scalars(self, progress: SaveProgress) -> tuple[SavedScalar, ...]:
        """Return the progress as scalars, which are saved with the tensors."""
        ...

    def progress(self, scalars: dict[str, int | float]) -> SaveProgress | None:
        """Parse the progress from scalars; return None if a value is missing."""
        ...

    def records(self, label: SaveLabel, rank: Rank) -> tuple[tuple[str, bytes], ...]:
        """Return the path (relative to the tree) and content of each record that names this save as the last save."""
        ...

    def with_health(self, old: bytes | None, label: SaveLabel, health: Health) -> bytes:
        """Return the content of the health file with an entry for this save added.

        Raises:
            ValueError: The old file does not have the trainer's form.
        """
        ...
