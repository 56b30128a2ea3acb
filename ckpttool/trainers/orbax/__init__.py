"""Orbax: saves of JAX training runs, written by its CheckpointManager.

Source: orbax-checkpoint 0.12.8, checkpoint_manager.py and _src/path/step.py; saves by this version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import STEP_DIGITS, Step
from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

RECORD = "_CHECKPOINT_METADATA"
"""File that names the items of a save."""
RECORD_LIMIT = 16 << 20
"""Maximum bytes of this file; a real file has a few hundred."""
TREE = "_METADATA"
"""File in an item that names the item's arrays."""
SHARDING = "_sharding"
"""File in an item with JAX arrays that records how the arrays are distributed over devices."""
ARRAYS = "array_metadatas"
"""A folder in such an item."""
FIRST_API = ".experimental.v1."
"""Part of the names of `orbax.checkpoint.v1` handlers, which load no JAX arrays without `_sharding`."""
MARK = "commit_success.txt"
"""The commit mark, used only on object stores, because a folder cannot be renamed there."""

SAVE = rf"(?s:(?P<prefix>.+)_)?(?P<step>[0-9]{{1,{STEP_DIGITS}}})"
_UNFINISHED = ".orbax-checkpoint-tmp"


def prefix_and_step(name: str) -> tuple[str, Step] | None:
    """Return the prefix and step in a save's name; None for any other name."""
    match = re.fullmatch(SAVE, name)
    return None if match is None else (match["prefix"] or "", Step(int(match["step"])))


def is_unfinished(name: str) -> bool:
    """Return whether a name is temporary, and will change when the save is complete."""
    return _UNFINISHED in name


def recognise(listing: Listing) -> bool:
    """Recognize saves by the record in their folders, because other folders have similar names."""
    return any(RECORD in names for _, names in listing.inside(SAVE))


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong."""
    name = folder.partition("/")[0]
    if prefix_and_step(name) is None or not any(RECORD in names for _, names in listing.alone(name).inside()):
        return None
    return Part.of_save(name)


LAYOUT = LayoutSigns(
    name="orbax",
    sign="[prefix_]N/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.orbax.layout:OrbaxLayout",
)
TRAINER = Trainer(
    name="orbax",
    title="Orbax",
    records=r"_CHECKPOINT_METADATA|_METADATA|_sharding",
    only_after_saves=r"_CHECKPOINT_METADATA|_METADATA|commit_success\.txt",
    places=("checkpoints",),
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.orbax:LAYOUT",),
    simulator_at="ckpttool.trainers.orbax.resumes:SIMULATOR",
    effects_at="ckpttool.trainers.orbax.resumes:effects",
)
