"""NeMo AutoModel: `epoch_E_step_N/` with the model, the optimizer's slices, and states of each rank.

Source: `recipes/base_recipe.py` and `components/checkpoint` of nemo-automodel 0.7.0, and runs of that code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

SAVE = "epoch_([0-9]{1,18})_step_([0-9]{1,18})"
"""The number of the step is one less than the steps that are completed at the save."""
MARK = ".incomplete"
"""The file in a save that is removed when the save is complete."""
LATEST = "LATEST"
POINTER = r"[A-Z][A-Z_]*(?:\.txt)?"
"""A link to a save, or a text file if links are not possible: `LATEST`, `LOWEST_VAL`."""
POINTER_LIMIT = 1024
"""Maximum bytes of such a text."""
MODEL, OPTIMIZER, LOADERS, RANDOM = "model", "optim", "dataloader", "rng"
COUNTERS = "step_scheduler.pt"


def recognise(listing: Listing) -> bool:
    """Recognize a save by its name and its folders."""
    return any(not names.isdisjoint({MODEL, OPTIMIZER}) for _, names in listing.inside(SAVE))


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong; the pointers belong to all saves."""
    if not folder:
        return WHOLE_TREE if file is not None and re.fullmatch(POINTER, file) else None
    name = folder.partition("/")[0]
    return Part.of_save(name) if re.fullmatch(SAVE, name) else None


LAYOUT = LayoutSigns(
    name="automodel",
    sign="epoch_E_step_N/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.automodel.layout:AutoModelLayout",
)
TRAINER = Trainer(
    name="automodel",
    title="NeMo AutoModel",
    records=r"LATEST\.txt",
    only_after_saves=r"(?:LATEST|LOWEST_VAL)(?:\.txt)?",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.automodel:LAYOUT",),
    loaders_at="ckpttool.trainers.automodel.loaders:loaders",
    simulator_at="ckpttool.trainers.automodel.resumes:SIMULATOR",
    objections_at="ckpttool.trainers.automodel.resumes:objections",
    effects_at="ckpttool.trainers.automodel.resumes:effects",
    weights_at="ckpttool.trainers.automodel.weights:weights",
)
