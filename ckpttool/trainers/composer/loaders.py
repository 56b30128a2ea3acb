"""The positions in Composer's saves: its own timestamp, and the state of the training data set, if it keeps one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.loader_state import LoaderState, SavedLoader
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import plain_values, value_at
from ckpttool.trainers.composer.kinds import is_folder
from ckpttool.trainers.composer.record import Record, read_file, read_folder
from ckpttool.trainers.loader_states.files import loader_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.storage.base import Storage

_DATA_SET = ("state", "dataset_state", "train")


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> Iterator[SavedLoader]:
    """Yield the positions in a save. In a folder, the state of the data set is only mentioned."""
    del inventory
    name = checkpoint.name
    try:
        if is_folder(checkpoint):
            from ckpttool.core.formats.torch.dcp import MOST_METADATA_BYTES
            from ckpttool.trainers.torch_dcp.store import read_store

            record = read_folder(storage, name, read_store(storage, name, most=MOST_METADATA_BYTES))
            yield from _timestamp(record, name)
            return
        with storage.open(name) as source:
            yield from _timestamp(read_file(source), name)
            state = value_at(plain_values(source), *_DATA_SET)
    except (OSError, BrokenPickleError):  # reported by the check of the file
        return
    if state is not None:
        yield loader_of(state, path=name, key=".".join(_DATA_SET))


def _timestamp(record: Record, path: str) -> Iterator[SavedLoader]:
    epoch, batches = record.number("epoch"), record.number("in_epoch")
    if epoch is None or batches is None:
        return
    state = LoaderState(
        kind="Composer's timestamp",
        epoch=epoch,
        batches=batches,
        samples=record.number("samples_in_epoch"),
        order=(epoch, batches),
        is_strict=True,
    )
    yield SavedLoader(path=path, key="state.timestamp", state=state)
