"""Where Hugging Face's Trainer saves: `checkpoint-N/`, N being the optimizer steps that were done."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Part, Refusal, ScanOptions
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.hf_saves.save_folder import WEIGHTS, closer, is_unfinished
from ckpttool.trainers.huggingface import HuggingFace
from ckpttool.trainers.huggingface.names import ARGUMENTS, SAVE, STATE, number_in, saves_called_otherwise
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll

_OWN = rf"{re.escape(STATE)}|{re.escape(ARGUMENTS)}|rng_state(?:_[0-9]{{1,9}})?\.pth|global_step[0-9]+"
"""What lies in a save and in no other trainer's folder of such a name."""

_SHARED = rf"{WEIGHTS}|(?s:pytorch_model.*)"
"""What lies in a save of scripts that save by Accelerate, too: one that was cut off may hold no more."""

_SHARED_IN_TAG = r"(?s:.+)/global_step[0-9]+/mp_rank_[0-9]+_model_states\.pt"
"""What DeepSpeed's replicas share in a tag of a save."""

_ALIEN = r"random_states_[0-9]+\.pkl"
"""What scripts that save by Accelerate alone have there: their folders often have such names."""


class HfTrainerLayout(Untracked):
    """One folder for each save, shared by all ranks; nothing beside them names the last."""

    (name,) = HuggingFace.layout_names
    title = HuggingFace.title
    sign = "checkpoint-N/"

    def recognise(self, listing: Listing) -> bool:
        """Tell by what lies in the folders of such names: others call theirs alike."""
        may_be, is_alien = False, False
        try:
            for _, names in listing.inside(SAVE):
                if _has(names, _ALIEN):
                    is_alien = True
                elif _has(names, _OWN):
                    return True
                else:
                    may_be = may_be or _has(names, _SHARED)
        except OSError:
            if not may_be:
                raise
        return (may_be and not is_alien) or bool(saves_called_otherwise(listing))

    def part(self, listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
        """Take a save's folder, and whatever lies in it, for the save."""
        save = folder.partition("/")[0]
        if not save or not (re.fullmatch(SAVE, save) or saves_called_otherwise(listing.alone(save))):
            return None
        return Part(focus=save, resolved_from=save)

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """Read each save's names and `trainer_state.json`; no shard is opened."""
        from ckpttool.trainers.huggingface.scan import scan_saves

        return scan_saves(storage, listing, options)

    def closer(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Compare the index of weights in parts with the parts, and read records that are large."""
        from ckpttool.trainers.huggingface.scan import with_model_config, with_whole_state

        checkpoint = with_model_config(storage, with_whole_state(storage, checkpoint))
        return closer(storage, checkpoint, checkpoint.name)

    def is_unfinished(self, name: str) -> bool:
        """Tell by the names under which safetensors writes."""
        return is_unfinished(name)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder, with all that is in it; the best one stays."""
        if checkpoint.is_tracked:
            return Refusal(why="is what best_model_checkpoint names")
        if number_in(checkpoint.name) is None:
            return Refusal(why="has a name that Trainer gives to no save: somebody keeps it")
        return Members(paths=(checkpoint.name,), records=(f"{checkpoint.name}/{STATE}",))

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Name all that is no rank's own; of slices, and of a whole optimizer that FSDP gathered, a rank reads some.

        Source:
            `Trainer._inner_training_loop`, `_load_from_checkpoint` and `_load_optimizer_and_scheduler` of
            transformers 5.23: each process looks for these in the folder itself, and begins anew what it does not find.
        """
        from ckpttool.core.domain.placement import ReadByAll
        from ckpttool.trainers.hf_saves.save_folder import read_by_all

        state, tag = f"{checkpoint.name}/{STATE}", f"{checkpoint.name}/global_step"
        own = [shard for shard in checkpoint.shards if not shard.path.startswith(tag)]
        told = read_by_all(checkpoint.name, own)
        inner = [shard.path for shard in checkpoint.shards if re.fullmatch(_SHARED_IN_TAG, shard.path)]
        latest = [f"{checkpoint.name}/latest"] if len(own) < len(checkpoint.shards) else []
        gathered = tuple(path for path in told.surely if path.endswith("/optimizer.bin"))
        surely = [path for path in told.surely if path not in gathered]
        return ReadByAll(surely=(state, *surely, *latest, *inner), perhaps=(*told.perhaps, *gathered))

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Name the save's folder: `True` would take the highest number, whatever is in it."""
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        on_line = Place.parsed("argument:--resume_from_checkpoint")
        in_code = Place.parsed("code:trainer.train(..., resume_from_checkpoint)")
        return LoadSettings(
            trainer=HuggingFace.name,
            path=path,
            settings=(
                TrainerSetting(place=in_code, value=path, is_path=True),
                TrainerSetting(place=on_line, value=path, is_path=True, is_alternative=True),
            ),
            remarks=("Never say resume_from_checkpoint=True: it takes the highest number, whatever is in it.",),
        )


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)
