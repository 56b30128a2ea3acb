"""torchtitan's layout: `step-N/{.metadata, __0_0.distcp, …}` with model, optimizer, schedule, loaders and counters.

Source:
    `torchtitan/components/checkpoint.py` of torchtitan 0.3.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, NamedStep
from ckpttool.core.domain.finding import in_order
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Step
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Refusal, ScanOptions
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.layout import FoldersOfSlices
from ckpttool.trainers.torchtitan import DP, LAYOUT, SAVE, STATE, TRAINER

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.trainers.torch_dcp.saves import SaveRecord
    from ckpttool.trainers.torch_dcp.store import DcpStore


class TorchtitanLayout(FoldersOfSlices):
    """A layout with one folder per save, whose name contains the step."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its record and the counters that the record refers to."""
        from ckpttool.trainers.torch_dcp.saves import SaveTree
        from ckpttool.trainers.torchtitan.exported import look_at_either
        from ckpttool.trainers.torchtitan.own_choice import strays_taken

        tree = SaveTree(layout=TRAINER.name, reading=_save_record, is_save=_saves, read_folder=look_at_either)
        inventory = tree.scan(storage, listing, options)
        taken = tuple(strays_taken(listing))
        paths = {finding.path for finding in taken}
        rest = (finding for finding in inventory.findings if finding.path not in paths)
        return replace(inventory, findings=in_order((*taken, *rest)))

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the step in the configured folder.

        For a save with only weights, return settings for its path.
        """
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        if checkpoint.content is Content.WEIGHTS_ONLY:
            place = Place.parsed("argument:--checkpoint.initial_load_path")
            weights = TrainerSetting(place=place, value=path, is_path=True)
            return LoadSettings(trainer=TRAINER.name, path=path, settings=(weights,))
        step = int(checkpoint.name.rpartition("-")[2])
        load_step = TrainerSetting(place=Place.parsed("argument:--checkpoint.load_step"), value=step)
        return LoadSettings(trainer=TRAINER.name, path=path, settings=(load_step,), remarks=(_FOLDER,))


_FOLDER = (
    "torchtitan searches for the step only in the configured folder: dump folder and checkpoint folder must lead here."
)


def _saves(listing: Listing) -> Iterator[str]:
    return (name for name in listing.folders("step-") if re.fullmatch(SAVE, name))


def _save_record(storage: Storage, name: str, store: DcpStore) -> SaveRecord:
    from ckpttool.trainers.torch_dcp.saves import SaveRecord, progress

    keys = {"step": ("step",), "tokens": ("ntokens_seen",), DP: ("world_size",)}
    numbers = progress(storage, name, store, keys)
    return SaveRecord(
        scalars=Scalars(step=numbers.get("step"), tokens=numbers.get("tokens")),
        content=_content(storage, name, store),
        named=NamedStep(stem="step-", number=Step(int(name.rpartition("-")[2]))),
        facts=((DP, numbers.get(DP)),),
    )


def _content(storage: Storage, name: str, store: DcpStore) -> Content:
    """Return whether a save contains only weights, judged by the names of the saved values."""
    from ckpttool.trainers.torch_dcp.store import mentions

    if store.metadata is not None:
        return (
            Content.FULL if any(tensor_name.startswith(STATE) for tensor_name in store.names) else Content.WEIGHTS_ONLY
        )
    if any(shard.format is FormatName.SAFETENSORS for shard in store.shards):
        return Content.WEIGHTS_ONLY
    if store.commit is not CommitState.COMMITTED:
        return Content.UNKNOWN
    # A record that is too large to be read in a scan is only searched.
    return Content.FULL if mentions(storage, f"{name}/{METADATA}", b"train_state") else Content.UNKNOWN
