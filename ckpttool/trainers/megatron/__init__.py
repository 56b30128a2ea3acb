"""Megatron-LM and its forks: ckpttool reads their checkpoints and logs, but not their configs.

Source:
    `get_checkpoint_name`, `get_distributed_optimizer_checkpoint_name` and `_get_checkpoint_format` of
    `megatron/training/checkpointing.py`, branch core_r0.16.0.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.units import Step
from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.common import TRACKER

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

ITERATION = r"iter_([0-9]{7,18})"
RELEASE = "release"
"""Folder of weights that a converter wrote, and the name of this folder in the tracker."""

METADATA_JSON, DCP_METADATA, COMMON, INTEGRITY = "metadata.json", ".metadata", "common.pt", "integrity.json"
MODEL, OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
NON_PERSISTENT = "non_persistent"
"""The folder of temporary saves between the regular ones, which the trainer removes itself."""

RANK_FOLDER = r"mp_rank_[0-9]{2,6}(?:_[0-9]{3,6}){0,2}"
ENERGON = r"train_dataloader_dprank([0-9]{1,7})\.pt"
"""The state of a data-parallel rank's loader, in the folder of the first part of the model."""
BRIDGE_TRACKER, TRAIN_STATE = "latest_train_state.pt", "train_state.pt"
"""Records of Megatron-Bridge and NeMo: a file next to the saves, which overrides any tracker, and one in each save."""
WRITTEN_INSIDE = ("run_config.yaml", TRAIN_STATE, "modelopt_run_config.yaml", "modelopt_state")
WRITTEN_BESIDE = (BRIDGE_TRACKER, "progress.txt")
"""Files that derived trainers write in a save or next to the saves."""


class SaveKind(str, Enum):
    """The format of a save, judged by the contents of its folder."""

    DISTRIBUTED = "torch_dist"
    """Slices with `metadata.json`, which any number of ranks can load."""
    LEGACY = "torch"
    """A folder for each part of the model."""
    PLAIN_DCP = "torch_dcp"
    """Slices without `metadata.json`."""
    UNKNOWN = "unknown"
    """Contents that do not identify the format."""


def kind_of(names: frozenset[str]) -> SaveKind:
    """Determine the format as the trainer does.

    `common.pt` without `metadata.json` shows an unfinished save.
    """
    if METADATA_JSON in names or COMMON in names:
        return SaveKind.DISTRIBUTED
    if any(re.fullmatch(RANK_FOLDER, name) for name in names):
        return SaveKind.LEGACY
    is_plain = any(name == DCP_METADATA or name.endswith(".distcp") for name in names)
    return SaveKind.PLAIN_DCP if is_plain else SaveKind.UNKNOWN


def iteration_folder(step: int) -> str:
    """Return the folder name of an iteration."""
    return f"iter_{step:07}"


def iteration_of(name: str) -> Step | None:
    """Return the iteration in a folder's name; None for any other name."""
    match = re.fullmatch(ITERATION, name)
    return None if match is None else Step(int(match[1]))


def is_save(name: str) -> bool:
    """Return whether a folder has the name of a save."""
    return name == RELEASE or re.fullmatch(ITERATION, name) is not None


class ModelPart(NamedTuple):
    """A part of the model in the legacy layout, which has its own folder."""

    tensor: int
    pipeline: int | None
    """Stage of the pipeline; None if the pipeline has only one stage."""
    expert: int | None
    """Expert-parallel rank; None if experts are not distributed."""

    @property
    def folder(self) -> str:
        """Name of the folder."""
        pipeline = "" if self.pipeline is None else f"_{self.pipeline:03}"
        return f"mp_rank_{self.tensor:02}{pipeline}{'' if self.expert is None else f'_{self.expert:03}'}"


def recognise(listing: Listing) -> bool:
    """Recognize saves by the contents of `iter_%07d` or `release/`, because other trainers write the same tracker."""
    inside = chain(listing.inside(ITERATION), listing.inside(RELEASE))
    return any(kind_of(names) is not SaveKind.UNKNOWN for _, names in inside)


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong; the tracker belongs to all saves."""
    if not folder:
        return WHOLE_TREE if file == TRACKER else None
    name = folder.partition("/")[0]
    return Part.of_save(name) if is_save(name) else None


LAYOUT = LayoutSigns(
    name="megatron",
    sign="iter_*/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.megatron.layout:MegatronIterations",
)
TRAINER = Trainer(
    name="megatron",
    title="Megatron-LM",
    records=r"(?:metadata|integrity)\.json|latest_checkpointed_iteration\.txt",
    only_after_saves=r"integrity\.json|latest_checkpointed_iteration\.txt",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.megatron:LAYOUT",),
    loaders_at="ckpttool.trainers.megatron.loaders:loaders",
    log_formats_at=("ckpttool.trainers.megatron.log:Megatron",),
    logs_mean_loss=True,
    words_at="ckpttool.trainers.megatron.load:MegatronWords",
    simulator_at="ckpttool.trainers.megatron.resumes:SIMULATOR",
    objections_at="ckpttool.trainers.megatron.resumes:objections",
    effects_at="ckpttool.trainers.megatron.resumes:effects",
    weights_at="ckpttool.trainers.megatron.weights:weights",
)
