"""The positions in Megatron's saves: the consumed samples, and the states of Energon's loaders next to the model.

Source:
    `maybe_save_dataloader_state` in megatron/training/checkpointing.py, branch core_r0.16.0: with `--dataloader-save`,
    each data-parallel rank writes a file into the folder of the first part of the model, in this tree or another one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.loader_state import LoaderState, SavedLoader
from ckpttool.core.domain.units import Rank
from ckpttool.trainers.loader_states.files import loader_files
from ckpttool.trainers.megatron import COMMON, ENERGON, MODEL, RANK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.storage.base import Storage

_MOST_FOLDERS = 64


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> Iterator[SavedLoader]:
    """Yield the position of the sampler, and the state of each data-parallel rank's loader."""
    del inventory
    samples = checkpoint.scalars.samples
    if samples is not None:
        state = LoaderState(kind="Megatron's sampler", samples=samples, is_total=True, order=(samples,), is_strict=True)
        records = [shard.path for shard in checkpoint.shards if shard.path.endswith((COMMON, MODEL))]
        yield SavedLoader(path=next(iter(records), checkpoint.name), key="args.consumed_train_samples", state=state)
    yield from loader_files(storage, _energon_files(storage, checkpoint.name))


def _energon_files(storage: Storage, name: str) -> list[tuple[str, Rank | None]]:
    found = []
    try:
        folders = [entry.name for entry in storage.entries(name) if re.fullmatch(RANK_FOLDER, entry.name)]
        for folder in sorted(folders)[:_MOST_FOLDERS]:
            for entry in storage.entries(f"{name}/{folder}"):
                match = re.fullmatch(ENERGON, entry.name)
                if match is not None:
                    found.append((int(match[1]), f"{name}/{folder}/{entry.name}"))
    except OSError:  # reported by the scan
        return []
    return [(path, Rank(number)) for number, path in sorted(found)]
