"""Lightning (PyTorch Lightning): one file a save, or one folder of torch's distributed checkpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

SUFFIX = ".ckpt"
LAST = "last"
"""What the name of a save begins with that `ckpt_path="last"` may take."""
META = "meta.pt"
"""Written last where a save is a folder."""

VERSION = b"pytorch-lightning_version"
"""The third key of every save of its Trainer: in the first bytes of the file."""

_VERSION = r"-v[0-9]{1,9}\.ckpt"


def is_save(name: str) -> bool:
    """Return whether a file or folder is called like a save."""
    return name.endswith(SUFFIX) and name != SUFFIX


def is_last(name: str) -> bool:
    """Return whether `ckpt_path="last"` may take it.

    Source: `ModelCheckpoint._find_last_checkpoints` of Lightning 2.6, whose pattern is not matched to the name's end.
    """
    return is_save(name) and name.startswith(LAST)


def hpc_number(name: str) -> int | None:
    """Return the number of a save that Slurm's signal made Lightning write; None if it is none."""
    match = re.fullmatch(r"hpc_ckpt_([0-9]{1,9})\.ckpt", name)
    return None if match is None else int(match[1])


def is_bare(name: str) -> bool:
    """Return whether no number stands in a name: neither a counter nor a metric made it."""
    return re.search("[0-9]", name.removesuffix(SUFFIX)) is None


def is_version(name: str) -> bool:
    """Return whether a name was taken already when this was saved: `-v1` and higher."""
    return re.search(_VERSION, name) is not None and name.endswith(SUFFIX)


def step_in(name: str) -> int | None:
    """Return the step that a name tells in Lightning's own spelling, `epoch=1-step=12.ckpt`; None: none."""
    steps = re.findall(r"(?:^|[^a-z])step=([0-9]{1,18})(?![0-9])", name)
    return int(steps[0]) if len(steps) == 1 else None


def recognise(listing: Listing) -> bool:
    """Tell by how a `*.ckpt` begins, for others call theirs so, too; or by the record in such a folder."""
    pattern = rf"(?s:.+){re.escape(SUFFIX)}"
    return any(VERSION in head for _, head in listing.heads(pattern)) or any(
        META in names for _, names in listing.inside(pattern)
    )


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Take a save's folder, and whatever is in it, for the save; and a save's file."""
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
    configs_at="ckpttool.trainers.lightning.config:CONFIGS",
    simulator_at="ckpttool.trainers.lightning.own_choice:SIMULATOR",
    effects_at="ckpttool.trainers.lightning.effects:effects",
)
