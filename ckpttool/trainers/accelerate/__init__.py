"""Hugging Face Accelerate: its saves, the save that it chooses, and the Python code that loads a save.

Source: `utils/constants.py`, `checkpointing.py` and `Accelerator.save_state` of accelerate 1.15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpttool.core.domain.shard import Shard
    from ckpttool.trainers.listing import Listing

FOLDER = "checkpoints"
"""Folder for automatically numbered saves, in the project's folder."""
NUMBERED = r"checkpoint_[0-9]{1,18}"
RANK_STATE = r"random_states_(?P<rank>[0-9]{1,9})\.pkl"
"""One file per rank; these files and registered objects are written last."""
LOADER = r"dl_state_dict(?:_[0-9]{1,9})?\.bin"


def first_number(name: str) -> int | None:
    """Return the number by which Accelerate sorts an entry; None if the entry makes it stop with an IndexError."""
    match = re.search("[0-9]+", name)
    return None if match is None else int(match[0][:18])


def folder_of(name: str, shards: Iterable[Shard] = ()) -> str:
    """Return a save's folder relative to the root.

    A numbered save is in `checkpoints/`, unless its shards are in a folder directly below the root.
    """
    if re.fullmatch(NUMBERED, name) is None or any(shard.path.startswith(f"{name}/") for shard in shards):
        return name
    return f"{FOLDER}/{name}"


def recognise(listing: Listing) -> bool:
    """Check for random-number states in any folder, or in a numbered folder below `checkpoints/`."""
    if any(_has_rank_state(names) for _, names in listing.inside()):
        return True
    if not listing.has(FOLDER):
        return False
    from ckpttool.trainers.listing import MOST_LOOKED_INTO  # help that lists the layouts reads no folder

    numbered = sorted(filter(_is_numbered, listing.names_in(FOLDER)), key=lambda name: (len(name), name))
    return any(_has_rank_state(listing.names_in(f"{FOLDER}/{name}")) for name in numbered[-MOST_LOOKED_INTO:])


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong; `checkpoints/` belongs to all saves."""
    if not folder:
        return None
    first, _, rest = folder.partition("/")
    if first == FOLDER:
        save = rest.partition("/")[0]
        if not rest:
            return WHOLE_TREE if recognise(listing.alone(FOLDER)) else None
        return Part.of_save(save) if _is_numbered(save) else None
    is_save = any(_has_rank_state(names) for name, names in listing.inside(re.escape(first)) if name == first)
    return Part.of_save(first) if is_save else None


def _is_numbered(name: str) -> bool:
    return re.fullmatch(NUMBERED, name) is not None


def _has_rank_state(names: Iterable[str]) -> bool:
    return any(name.startswith("random_states_") and re.fullmatch(RANK_STATE, name) for name in names)


LAYOUT = LayoutSigns(
    name="accelerate",
    sign=f"{FOLDER}/checkpoint_N/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.accelerate.layout:AccelerateLayout",
)
TRAINER = Trainer(
    name="accelerate",
    title="Accelerate",
    records=r".+\.index\.json",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.accelerate:LAYOUT",),
    loaders_at="ckpttool.trainers.accelerate.loaders:loaders",
    simulator_at="ckpttool.trainers.accelerate.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.hf_saves:objections",
    effects_at="ckpttool.trainers.accelerate.resumes:effects",
    weights_at="ckpttool.trainers.hf_saves.weights:script_weights",
)
