"""Lightning (PyTorch Lightning): a save is one file, or one folder of torch's distributed checkpoints or DeepSpeed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.deepspeed_tags import LATEST, WRITTEN_BESIDE

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckpttool.trainers.listing import Listing

SUFFIX = ".ckpt"
LAST = "last"
"""Prefix of the saves that `ckpt_path="last"` may choose."""
META = "meta.pt"
"""The file that is written last if a save is a folder."""
TAG = "checkpoint"
"""The tag of every save with DeepSpeed: the folder in a save that contains DeepSpeed's files."""

VERSION = b"pytorch-lightning_version"
"""The third key in every save by Lightning's Trainer, found in the first bytes of the file."""

_VERSION = r"-v[0-9]{1,9}\.ckpt"


def is_save(name: str) -> bool:
    """Return whether a file or folder has the name of a save."""
    return name.endswith(SUFFIX) and name != SUFFIX


def is_last(name: str) -> bool:
    """Return whether `ckpt_path="last"` may choose a file or folder with this name.

    Source: `ModelCheckpoint._find_last_checkpoints` of Lightning 2.6, whose pattern need not match up to the end of the
    name.
    """
    return is_save(name) and name.startswith(LAST)


def hpc_number(name: str) -> int | None:
    """Return the number of a save that Lightning wrote on Slurm's signal; None for any other save."""
    match = re.fullmatch(r"hpc_ckpt_([0-9]{1,9})\.ckpt", name)
    return None if match is None else int(match[1])


def is_bare(name: str) -> bool:
    """Return whether a name contains no digits, which would come from a counter or a metric."""
    return re.search("[0-9]", name.removesuffix(SUFFIX)) is None


def is_version(name: str) -> bool:
    """Return whether a name ends in `-v1` or higher, because the original name was already taken."""
    return re.search(_VERSION, name) is not None and name.endswith(SUFFIX)


def holds_tag(names: Collection[str]) -> bool:
    """Return whether a save's folder was written with DeepSpeed, judged by the names in it."""
    return TAG in names and not {LATEST, *WRITTEN_BESIDE}.isdisjoint(names)


def step_in(name: str) -> int | None:
    """Return the step in a name of Lightning's form, such as `epoch=1-step=12.ckpt`; None for any other name."""
    steps = re.findall(r"(?:^|[^a-z])step=([0-9]{1,18})(?![0-9])", name)
    return int(steps[0]) if len(steps) == 1 else None


def recognise(listing: Listing) -> bool:
    """Recognize saves by their content, because other trainers use `*.ckpt` too.

    A file has Lightning's version in its first bytes, and a folder contains `meta.pt`, or DeepSpeed's tag.
    """
    pattern = rf"(?s:.+){re.escape(SUFFIX)}"
    return any(VERSION in head for _, head in listing.heads(pattern)) or any(
        META in names or holds_tag(names) for _, names in listing.inside(pattern)
    )


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder with its contents, or a file, belongs."""
    name = folder.partition("/")[0] or file or ""
    return Part.of_save(name) if is_save(name) else None


LAYOUT = LayoutSigns(
    name="lightning",
    sign="*.ckpt",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.lightning.layout:LightningLayout",
)
TRAINER = Trainer(
    name="lightning",
    title="Lightning",
    places=("checkpoints", "lightning_logs/version_*/checkpoints"),
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.lightning:LAYOUT",),
    loaders_at="ckpttool.trainers.lightning.loaders:loaders",
    start_logs_at="ckpttool.trainers.lightning.places:start_logs",
    counts_from_zero=True,
    restores_random_state=False,
    redraws_data_order=True,
    configs_at="ckpttool.trainers.lightning.config:CONFIGS",
    intervals_at="ckpttool.trainers.lightning.intervals:intervals",
    simulator_at="ckpttool.trainers.lightning.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.lightning.deepspeed_saves:objections",
    effects_at="ckpttool.trainers.lightning.effects:effects",
    weights_at="ckpttool.trainers.lightning.weights:weights",
)
