"""The states of verl's data loaders: the driver's single one, or one for each data-parallel rank of the SFT trainer."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.trainers.loader_states.files import loader_files
from ckpttool.trainers.verl import DATA_OF_RANK
from ckpttool.trainers.verl.effects import is_fine_tuning
from ckpttool.trainers.verl.fine_tuning import AT_EPOCHS_END, WITHOUT_STATES, epoch_batches, loader_paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.loader_state import SavedLoader
    from ckpttool.core.storage.base import Storage


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> Iterable[SavedLoader]:
    """Return the states of the driver's loader, or of the loaders of the SFT trainer's data-parallel ranks.

    From a state at an epoch's last batch, the SFT trainer skips the next epoch. The trainer for reinforcement learning
    leaves such a state out since 0.9, so that it loses nothing.
    """
    saved = loader_files(storage, [(path, _rank_of(path)) for path in loader_paths(checkpoint)])
    if not is_fine_tuning(checkpoint):
        return saved
    return at_epochs_end(saved, epoch_batches(storage, inventory, checkpoint), AT_EPOCHS_END, WITHOUT_STATES)


def _rank_of(path: str) -> Rank | None:
    match = re.fullmatch(DATA_OF_RANK, posixpath.basename(path))
    return Rank(int(match[1])) if match is not None and int(match[1]) < MAX_RANKS else None


def at_epochs_end(saved: Iterable[SavedLoader], length: int | None, why: str, remedy: str) -> list[SavedLoader]:
    """Mark the states at an epoch's last batch, from which the trainer skips the next epoch.

    Args:
        saved: The states.
        length: Number of batches per epoch; None if unknown.
        why: The consequence of a resume from such a state.
        remedy: The way to resume without it.
    """
    marked = []
    for loader in saved:
        state = loader.state
        if state is not None and length is not None and state.batches == length:
            loader = replace(loader, state=replace(state, yields_nothing=why), remedy=remedy)  # noqa: PLW2901
        marked.append(loader)
    return marked
