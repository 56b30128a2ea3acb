"""Hugging Face Trainer's layout: `checkpoint-N/`, in which N is the number of optimizer steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.hf_saves.save_folder import is_unfinished, with_own_records
from ckpttool.trainers.huggingface import LAYOUT, STATE, TRAINER, number_in
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll

_SHARED_IN_TAG = r"(?s:.+)/global_step[0-9]+/mp_rank_[0-9]+_model_states\.pt"
"""Files that DeepSpeed's replicas share in a tag of a save."""


class HfTrainerLayout(Untracked):
    """A layout with one folder per save, shared by all ranks, and no record that names the last save."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its `trainer_state.json`; no shard is opened."""
        from ckpttool.trainers.huggingface.scan import scan_saves

        return scan_saves(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Compare the weights' index with their parts, and read large records."""
        from ckpttool.trainers.huggingface.scan import with_complete_state, with_model_config

        checkpoint = with_model_config(storage, with_complete_state(storage, checkpoint))
        return with_own_records(storage, checkpoint, checkpoint.name)

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is a temporary name that safetensors uses before it renames the file."""
        return is_unfinished(name)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents.

        Refuse to move the best save, or a save with a name that Trainer does not use.
        """
        if checkpoint.is_tracked:
            return Refusal(why="is the one that best_model_checkpoint names")
        if number_in(checkpoint.name) is None:
            return Refusal(why="has a name that Trainer does not use: a person keeps it")
        return Members(paths=(checkpoint.name,), records=(f"{checkpoint.name}/{STATE}",))

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return all files without a rank.

        Each rank reads only some slices, and only a part of FSDP's gathered optimizer.

        Source:
            `Trainer._inner_training_loop`, `_load_from_checkpoint` and `_load_optimizer_and_scheduler` of transformers
            5.23: each process searches the folder itself for these files, and re-initialises any state that it does not
            find.
        """
        from ckpttool.core.domain.placement import ReadByAll
        from ckpttool.trainers.hf_saves.save_folder import read_by_all

        state, tag = f"{checkpoint.name}/{STATE}", f"{checkpoint.name}/global_step"
        own_shards = [shard for shard in checkpoint.shards if not shard.path.startswith(tag)]
        paths = read_by_all(checkpoint.name, own_shards)
        inner = [shard.path for shard in checkpoint.shards if re.fullmatch(_SHARED_IN_TAG, shard.path)]
        latest = [f"{checkpoint.name}/latest"] if len(own_shards) < len(checkpoint.shards) else []
        gathered = tuple(path for path in paths.surely if path.endswith("/optimizer.bin"))
        surely = [path for path in paths.surely if path not in gathered]
        return ReadByAll(surely=(state, *surely, *latest, *inner), perhaps=(*paths.perhaps, *gathered))

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the save's folder.

        `True` would select the highest number, whatever the folder contains.
        """
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        on_line = Place.parsed("argument:--resume_from_checkpoint")
        in_code = Place.parsed("code:trainer.train(..., resume_from_checkpoint)")
        return LoadSettings(
            trainer=TRAINER.name,
            path=path,
            settings=(
                TrainerSetting(place=in_code, value=path, is_path=True),
                TrainerSetting(place=on_line, value=path, is_path=True, is_alternative=True),
            ),
            remarks=("Never use resume_from_checkpoint=True: it loads the highest number, whatever its content.",),
        )
