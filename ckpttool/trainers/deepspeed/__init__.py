"""DeepSpeed: its trees, and the save that it chooses.

Source:
    `_get_ckpt_name`, `_get_zero_ckpt_prefix`, `_get_expert_ckpt_name` and `_get_optimizer_ckpt_name` of
    `deepspeed/runtime/engine.py`, `ckpt_layer_path` of `runtime/pipe/module.py`; DeepSpeed 0.19.8.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.shard import ShardRole
from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

LATEST = "latest"
LATEST_UNIVERSAL = "latest_universal"

UNIVERSAL_PART = "zero"
"""The folder that makes a tag a universal checkpoint: `ds_to_universal.py` writes one subfolder for each parameter."""

DEFAULT_TAG = r"global_step([0-9]{1,18})"
"""Name of a save for which the training script passes no tag."""

WRITTEN_BESIDE = ("zero_to_fp32.py", "zero_to_torch.py")
"""Scripts that DeepSpeed writes next to its tags."""

_RANK = r"0|[1-9][0-9]{0,6}"
_SLICE = r"[0-9]{2}|[1-9][0-9]{2,6}"
_OWN = (
    rf"(?:(?P<bf16>bf16_)?zero_pp_rank_(?P<dp>{_RANK})_)?mp_rank_(?P<mp>{_SLICE})"
    r"_(?:(?P<model>model)|optim)_states\.pt"
)
_OF_PARTS = (
    rf"layer_[0-9]+-model_.*model_states\.pt|layer_-?[0-9]+_expert_[0-9]+_mp_rank_(?:{_SLICE})_model_states\.pt"
    rf"|expp_rank_[0-9]+_mp_rank_(?:{_SLICE})_optim_states\.pt"
)
"""Layers of a pipeline, and experts with their optimizer state: no record shows how many there are."""


class StatesFile(NamedTuple):
    """The meaning of a file name in a tag's folder."""

    role: ShardRole
    slice: int | None = None
    """The model-parallel rank (`mp_rank`); None if the file name does not contain it."""
    replica: int | None = None
    """The data-parallel rank; None for a file that all ranks share."""
    is_bf16: bool = False


def parse(name: str) -> StatesFile | None:
    """Return the meaning of a file in a tag; None if DeepSpeed writes no file with that name."""
    if not name.endswith("_states.pt"):
        return None
    match = re.fullmatch(_OWN, name)
    if match is not None:
        is_model = match["model"] is not None
        if match["bf16"] if is_model else match["dp"] is None:
            return None
        replica = None if match["dp"] is None else int(match["dp"])
        role = ShardRole.MODEL if is_model else ShardRole.OPTIMIZER
        return StatesFile(role, int(match["mp"]), replica, match["bf16"] is not None)
    if re.fullmatch(_OF_PARTS, name, re.DOTALL) is None:
        return None
    return StatesFile(ShardRole.OPTIMIZER if name.startswith("expp_") else ShardRole.MODEL)


def model_file(mp: int, dp: int | None = None) -> str:
    """Return the name of the file with a slice of the model.

    With a data-parallel rank, return the name that ZeRO 3 uses.
    """
    return f"{_replica(dp)}mp_rank_{mp:02}_model_states.pt"


def optimizer_file(mp: int, dp: int, *, is_bf16: bool) -> str:
    """Return the name of the file with a data-parallel rank's part of the optimizer state."""
    return f"{'bf16_' if is_bf16 else ''}{_replica(dp)}mp_rank_{mp:02}_optim_states.pt"


def _replica(dp: int | None) -> str:
    return "" if dp is None else f"zero_pp_rank_{dp}_"


def recognise(listing: Listing) -> bool:
    """Recognize a folder of tags by the files in the tags.

    A tag has model states, with optimizer states or with a `latest` file next to the tag. A tag with the default name
    may have only replica files: a machine other than the first that saves to its own disk has only those.
    """
    has_latest = listing.has(LATEST)
    for folder, names in listing.inside():
        files = [own for name in names if (own := parse(name)) is not None]
        roles = {own.role for own in files}
        if roles == {ShardRole.MODEL, ShardRole.OPTIMIZER} or (has_latest and ShardRole.MODEL in roles):
            return True
        if re.fullmatch(DEFAULT_TAG, folder) and any(own.replica is not None for own in files):
            return True
    return False


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a tag and its contents belong; `latest` belongs to all saves.

    The contents of a folder show whether it is a tag.
    """
    if not folder:
        return WHOLE_TREE if file == LATEST else None
    tag = folder.partition("/")[0]
    is_tag = re.fullmatch(DEFAULT_TAG, tag) is not None or (listing.has(tag) and any(map(parse, listing.names_in(tag))))
    return Part.of_save(tag) if is_tag else None


LAYOUT = LayoutSigns(
    name="deepspeed",
    sign="global_step*/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.deepspeed.layout:DeepSpeedTags",
)
TRAINER = Trainer(
    name="deepspeed",
    title="DeepSpeed",
    records=r"latest(?:_universal)?",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.deepspeed:LAYOUT",),
    configs_at="ckpttool.trainers.deepspeed.config:CONFIGS",
    simulator_at="ckpttool.trainers.deepspeed.resumes:SIMULATOR",
    objections_at="ckpttool.trainers.deepspeed.resumes:objections",
    effects_at="ckpttool.trainers.deepspeed.resumes:effects",
)
