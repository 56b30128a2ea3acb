"""verl, for reinforcement learning: the workers save one folder per role, the driver saves its data loader.

Source: `fsdp_checkpoint_manager.py` and `checkpoint_handler.py` in verl/utils/checkpoint, and
verl/trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import STEP_DIGITS, Step
from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.common import SKYRL_TRACKER, TRACKER

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

ROLES = ("actor", "critic")
"""Folders in a save, one per trained model; any other folder with a rank's file also counts."""
OWN_ROLE = ""
"""Role in the SFT trainer's saves.

That trainer trains one model, whose files are in the save's folder itself.
"""
DATA = "data.pt"
"""Position of the data loader; the driver has one for all ranks."""
DATA_OF_RANK = r"data_([0-9]{1,7})\.pt"
"""The same for the SFT trainer, which has a loader on each data-parallel rank."""
DATA_OF_FIRST_RANK = "data_0.pt"

SAVE = rf"global_step_([0-9]{{1,{STEP_DIGITS}}})"
STATES = r"(?P<kind>model|optim|extra_state)_world_size_(?P<world>[0-9]{1,7})_rank_(?P<rank>[0-9]{1,7})\.pt"
KINDS = {"model": ShardRole.MODEL, "optim": ShardRole.OPTIMIZER, "extra_state": ShardRole.STATE}
"""Roles by the prefix of a rank's file name."""


def holds_a_model(names: Iterable[str]) -> bool:
    """Return whether a folder with these names contains a rank's file of a model."""
    return any(re.fullmatch(STATES, name) for name in names)


def is_data(name: str) -> bool:
    """Return whether a file in a save's folder contains the position of a data loader."""
    return name == DATA or re.fullmatch(DATA_OF_RANK, name) is not None


def step_of(name: str) -> Step | None:
    """Return the step in the name of a save's folder; None for any other name."""
    match = re.fullmatch(SAVE, name)
    return None if match is None else Step(int(match[1]))


def folder_of(step: Step) -> str:
    """Return the folder name of a step's save."""
    return f"global_step_{step}"


def recognise(listing: Listing) -> bool:
    """Recognize the models in a save, or their folders, because other trainers also write the tracker.

    SkyRL's saves have the same names, and one folder with the same name.
    """
    from ckpttool.trainers.verl.skyrl import POLICY, STATE

    roles = {"actor"} if listing.has(SKYRL_TRACKER) else {*ROLES}
    return any(
        (not names.isdisjoint(roles) or holds_a_model(names)) and names.isdisjoint({POLICY, STATE})
        for _, names in listing.inside(SAVE)
    )


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong; the tracker belongs to all saves."""
    if not folder:
        return WHOLE_TREE if file == TRACKER else None
    name = folder.partition("/")[0]
    return None if step_of(name) is None else Part.of_save(name)


LAYOUT = LayoutSigns(
    name="verl",
    sign="global_step_*/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.verl.layout:VerlLayout",
)
TRAINER = Trainer(
    name="verl",
    title="verl",
    records=r"latest_checkpointed_iteration\.txt",
    only_after_saves=r"latest_checkpointed_iteration\.txt",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.verl:LAYOUT",),
    loaders_at="ckpttool.trainers.verl.loaders:loaders",
    simulator_at="ckpttool.trainers.verl.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.verl.effects:objections",
    effects_at="ckpttool.trainers.verl.effects:effects",
    weights_at="ckpttool.trainers.verl.weights:weights",
)
