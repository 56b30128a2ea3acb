"""Files by `torch.save`, each a whole save of a loop of one's own: `ckpt_200.pt`, `epoch_3.pth`, `last.pth.tar`.

The contents of a file decide whether it is a save. Several trainers save such files: nanoGPT, MMEngine, timm,
Ultralytics.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_OF_OTHERS = (
    r"(?i)(?:.*[^a-z])?(?:rank|shard|dp|tp|pp)[-_]?[0-9].*"  # one rank's part of a save
    r"|.*-[0-9]+-of-[0-9]+\..*|(?:pytorch_model|adapter_model|optimizer|scheduler|scaler|rng_state|training_args)(?:[-_][0-9]+)?\..*"
    r"|(?:model_optim_rng|model_rng|distrib_optim|lit_model|recipe_state)\..*"
)
"""Files in the saves of other trainers, or parts of a save that each rank writes: none is a whole save."""


def may_be_save(name: str) -> bool:
    """Return whether a file's name allows that it is a save; only its contents show whether it is one."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and re.fullmatch(_OF_OTHERS, name) is None


def recognise(listing: Listing) -> bool:
    """Recognize saves by their contents: one of the files with the highest numbers has a model and an optimizer."""
    names = listing.newest_files(may_be_save)
    if not names:
        return False
    from ckpttool.trainers.torch_files.record import record_of  # few folders have such files

    return any(record_of(listing.values(name)).is_full for name in names)


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the part for a file in the root that is a save; None for any other file."""
    if folder or file is None or not may_be_save(file):
        return None
    from ckpttool.trainers.torch_files.record import record_of

    return Part.of_save(file) if record_of(listing.values(file)).is_save else None


LAYOUT = LayoutSigns(
    name="torch-files",
    sign="*.pt",
    gives_way=True,
    is_last=True,
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.torch_files.layout:TorchFilesLayout",
)
TRAINER = Trainer(
    name="torch-files",
    title="a torch.save loop",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.torch_files:LAYOUT",),
    loaders_at="ckpttool.trainers.torch_files.loaders:loaders",
    simulator_at="ckpttool.trainers.torch_files.resumes:SIMULATOR",
    effects_at="ckpttool.trainers.torch_files.resumes:effects",
    weights_at="ckpttool.trainers.common.loose_weights:loop_weights",
)
