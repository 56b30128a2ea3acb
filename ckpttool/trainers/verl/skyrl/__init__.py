"""SkyRL, whose workers save the same rank files as verl's, with a different tracker and a record of the step.

Source: `trainer.py`, `sft_trainer.py`, `fully_async_trainer.py` and `fsdp_strategy.py` of skyrl 0.4.0 and skyrl-train
0.3.1; they were read, not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.common import SKYRL_TRACKER
from ckpttool.trainers.verl import DATA, SAVE, step_of

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

POLICY = "policy"
"""The trained model, without which no start loads a save."""
ROLES = (POLICY, "critic")
"""Folders in a save, one per trained model; any other folder with a rank's file also counts."""
STATE = "trainer_state.pt"
"""Record of the step and the config; it is written after the models and the data loader's state."""
ASYNC_STATE = "fully_async_state.pt"
"""Prompts that the fully asynchronous trainer has used; it is written last, after the tracker."""
SFT = "sft"
"""Fact of a save that the SFT trainer wrote; its settings have other names."""


def recognise(listing: Listing) -> bool:
    """Recognize the record in a save, the policy beside a loader's state, or a save beside the tracker."""
    is_tracked = listing.has(SKYRL_TRACKER)
    return any(is_tracked or STATE in names or {POLICY, DATA} <= names for _, names in listing.inside(SAVE))


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong; the tracker belongs to all saves."""
    if not folder:
        return WHOLE_TREE if file == SKYRL_TRACKER else None
    name = folder.partition("/")[0]
    return None if step_of(name) is None else Part.of_save(name)


def is_fine_tuning(record: object) -> bool:
    """Return whether a record is the SFT trainer's, whose config has no section `trainer`."""
    from ckpttool.core.formats.torch.plain import value_at

    return value_at(record, "config", "resume_from") is not None


LAYOUT = LayoutSigns(
    name="skyrl",
    sign="global_step_*/policy/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.verl.skyrl.layout:SkyRlLayout",
)
TRAINER = Trainer(
    name="skyrl",
    title="SkyRL",
    records=r"latest_ckpt_global_step\.txt|trainer_state\.pt",
    only_after_saves=r"latest_ckpt_global_step\.txt",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.verl.skyrl:LAYOUT",),
    loaders_at="ckpttool.trainers.verl.skyrl.loaders:loaders",
    simulator_at="ckpttool.trainers.verl.skyrl.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.verl.skyrl.effects:objections",
    effects_at="ckpttool.trainers.verl.skyrl.effects:effects",
    weights_at="ckpttool.trainers.verl.weights:weights",
)
