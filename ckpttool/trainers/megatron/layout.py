"""Megatron-LM's layout: `iter_0000100/`, with slices for any number of ranks, or a folder per part of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.base import Storage, is_there
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.listed import own_folder
from ckpttool.trainers.common.tracker_file import tracker_naming, tracker_pointer
from ckpttool.trainers.common.written_together import WrittenTogether
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.megatron import (
    BRIDGE_TRACKER,
    COMMON,
    INTEGRITY,
    LAYOUT,
    METADATA_JSON,
    RELEASE,
    TRAINER,
    iteration_folder,
    iteration_of,
)

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText


class MegatronIterations(WrittenTogether):
    """A layout with one folder per save, shared by all ranks, and a tracker file next to these folders."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List the files in each save, and read the record in one of them."""
        from ckpttool.trainers.megatron.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read a record of slices that was too large for a scan, and the digests in the save."""
        from ckpttool.trainers.megatron.integrity import with_digests
        from ckpttool.trainers.torch_dcp import store

        return with_digests(storage, store.read_store_closely(storage, checkpoint, checkpoint.name))

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is the temporary name of `.metadata`.

        All other files get their final names directly.
        """
        return name == ".metadata.tmp"

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents; refuse to move the save in the tracker."""
        return own_folder(checkpoint, "the tracker", METADATA_JSON, INTEGRITY, COMMON)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the tracker, the records, and the slices or model parts, of which each rank reads some.

        Source:
            `_load_base_checkpoint` of `megatron/training/checkpointing.py`, branch core_r0.16.0; without a tracker a
            rank starts from step 0.
        """
        from ckpttool.core.domain.placement import ReadByAll
        from ckpttool.trainers.torch_dcp.store import read_by_all

        sizes = dict(checkpoint.scalars.rest)
        if all("/mp_rank_" in shard.path for shard in checkpoint.shards):
            parts = tuple(shard.path for shard in checkpoint.shards)
            # Without replicas, only the ranks that wrote a part of the model read it.
            return ReadByAll(surely=(TRACKER,), perhaps=() if sizes.get("data") == 1 else parts)
        paths = read_by_all(checkpoint)
        record = f"{checkpoint.name}/{METADATA_JSON}"
        return ReadByAll(surely=(TRACKER, record, *paths.surely), perhaps=paths.perhaps)

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the tracker; Megatron-Bridge's separate file is neither read nor written."""
        if is_there(storage, BRIDGE_TRACKER):
            from ckpttool.core.domain.pointer import Pointer

            return iter((Pointer(path=BRIDGE_TRACKER, trouble="is read only by Megatron-Bridge", unknown=True),))
        return iter((tracker_pointer(storage, iteration_folder, content=RELEASE),))

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the contents of a tracker that names this save."""
        return tracker_naming(checkpoint.name, iteration_of(checkpoint.name))

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the folder and the iteration.

        They make Megatron-LM stop if the iteration is missing.
        """
        from ckpttool.trainers.megatron.load import settings

        return settings(inventory, checkpoint)
