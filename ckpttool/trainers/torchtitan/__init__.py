"""torchtitan: `checkpoint/step-N/`, folders in the form of torch.distributed.checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.torch_dcp import METADATA, is_store

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

DP = "dp"
"""Display name of a save's number of data-parallel ranks."""
SAVE = "step-([0-9]{1,18})"
INDEX = "model.safetensors.index.json"
"""The sign of a save in Hugging Face's form."""
SECTION = "checkpoint"
"""Section of a config that contains the settings for saves."""
ON = (f"{SECTION}.enable", f"{SECTION}.enable_checkpoint")
"""The switch for saves, in version 0.2 and later, and in version 0.1."""
LEFT_OUT = f"{SECTION}.exclude_from_loading"
STATE = ("optimizer.", "lr_scheduler", "dataloader.", "train_state")
"""Prefixes of the names of everything except weights."""

_OWN = b"train_state"
"""Name in the record of every torchtitan save, except saves with only weights."""

_OF_A_LOOP = (_OWN, b"optim", b"BytesStorageMetadata")
"""Names in the record of any save with more than weights: optimizer state, or values that are not tensors."""


def recognise(listing: Listing) -> bool:
    """Recognize saves by their contents and the names of saved values, because others use the same folder names."""
    is_any = False
    for folder, names in listing.inside(SAVE):
        if INDEX in names:
            return True
        record = listing.record(f"{folder}/{METADATA}") if METADATA in names else None
        if record is not None and any(word in record for word in _OF_A_LOOP):
            return _OWN in record
        is_any = is_any or is_store(names)
    return is_any


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong."""
    name = folder.partition("/")[0]
    return Part.of_save(name) if re.fullmatch(SAVE, name) else None


LAYOUT = LayoutSigns(
    name="torchtitan",
    sign="step-N/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.torchtitan.layout:TorchtitanLayout",
)
TRAINER = Trainer(
    name="torchtitan",
    title="torchtitan",
    records=r".+\.index\.json",
    places=("checkpoint", "outputs/checkpoint"),
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.torchtitan:LAYOUT",),
    loaders_at="ckpttool.trainers.torch_dcp.loaders:loaders",
    log_formats_at=("ckpttool.trainers.torchtitan.log:TorchtitanLog",),
    configs_at="ckpttool.trainers.torchtitan.config:CONFIGS",
    intervals_at="ckpttool.trainers.torchtitan.intervals:intervals",
    simulator_at="ckpttool.trainers.torchtitan.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.torchtitan.effects:objections",
    effects_at="ckpttool.trainers.torchtitan.effects:effects",
    weights_at="ckpttool.trainers.torchtitan.weights:weights",
)
