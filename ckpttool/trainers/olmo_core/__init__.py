"""OLMo-core: `stepN/` with a state per rank in `train/`, and slices of the model and the optimizer.

Source: `train/checkpoint.py` and `train/callbacks/checkpointer.py` of ai2-olmo-core 3.0.0, and runs of that version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

SAVE = "step([0-9]{1,18})"
SLICES = "model_and_optim"
"""The folder of slices in a save."""
STATES = "train"
"""The folder with each rank's state: step, tokens, data loader and random numbers."""
RANK_STATE = r"rank(?P<rank>[0-9]{1,7})\.pt"
MARK = ".metadata.json"
"""The file that is written last; it is removed first when the trainer deletes a save."""


def recognise(listing: Listing) -> bool:
    """Recognize a save by its folder of slices, because others use the same folder names."""
    return any(SLICES in names for _, names in listing.inside(SAVE))


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong."""
    name = folder.partition("/")[0]
    return Part.of_save(name) if re.fullmatch(SAVE, name) else None


LAYOUT = LayoutSigns(
    name="olmo-core",
    sign="stepN/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.olmo_core.layout:OlmoCoreLayout",
)
TRAINER = Trainer(
    name="olmo-core",
    title="OLMo-core",
    records=r"\.metadata\.json",
    only_after_saves=r"\.metadata\.json",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.olmo_core:LAYOUT",),
    loaders_at="ckpttool.trainers.olmo_core.loaders:loaders",
    configs_at="ckpttool.trainers.olmo_core.config:CONFIGS",
    simulator_at="ckpttool.trainers.olmo_core.resumes:SIMULATOR",
    objections_at="ckpttool.trainers.olmo_core.resumes:objections",
    effects_at="ckpttool.trainers.olmo_core.resumes:effects",
    weights_at="ckpttool.trainers.olmo_core.weights:weights",
)
