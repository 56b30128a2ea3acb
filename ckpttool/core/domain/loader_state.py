"""Saved states of data loaders: the position of the data at a save, as the loaders themselves recorded it."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """The position in one saved state; None for values that the state does not show."""

    kind: str
    """Library or trainer whose loader saved the state, for display."""
    epoch: int | None = None
    """Number of the epoch, from 0."""
    batches: int | None = None
    """Batches that the loader had yielded, in the epoch unless `is_total`."""
    samples: int | None = None
    """Samples or rows that it had yielded, in the epoch unless `is_total`."""
    is_total: bool = False
    """Whether the counts are for the complete training run, and do not restart with an epoch."""
    workers: int | None = None
    """Number of the loader's own processes."""
    finished: bool | None = None
    """Whether the loader had already reached the end of its epoch."""
    place: str | None = None
    """Position in the data set's own terms, such as `shard 2, row 6`."""
    order: tuple[int, ...] = ()
    """Position that never goes back in a training run, so that two saves can be compared; empty if unknown."""
    is_strict: bool = False
    """Whether `order` grows with each batch."""
    identity: tuple[str, ...] = ()
    """Values that change only with the data set or its order; positions with different values are not comparable."""
    is_lockstep: bool = False
    """Whether all ranks must have yielded the same number of batches."""
    never_moved: bool = False
    """Whether the data set's own position is still the initial one."""
    yields_nothing: str | None = None
    """Why a resumed loader yields no batches in its first epoch; None if it does, or if this is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLoader:
    """One loader's state in a save, or the reason why it is not known."""

    path: str
    """POSIX path of the file, relative to the tree's root."""
    key: str = ""
    """Name of the state in the file; empty if the file contains only this state."""
    rank: Rank | None = None
    """Rank whose loader it is, as the trainer numbers them; None for a loader of all ranks."""
    state: LoaderState | None = None
    """None if the state is of an unknown kind, or cannot be read."""
    problem: str | None = None
    """Reason for an unknown state; None if it is known."""
    is_unsafe: bool = False
    """Whether loading the state would run code."""
    remedy: str | None = None
    """Way to resume without an empty epoch, if the trainer has its own; otherwise None."""
