"""Composer, also as LLM-Foundry starts it: a save is one file, or with sharded FSDP one folder of slices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.torch_dcp import METADATA, is_store

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

TIME = "state.timestamp.Timestamp."
"""Prefix of the counters in a folder's record: `batch` is the step."""
LATEST = r"latest-rank[0-9]+\.pt"
"""Pattern for the link to the last save; on a machine that fetched it from a store, it is a copy of that save."""
REMOTE_LATEST = rf"{LATEST}\.symlink"
"""Pattern for the small file that replaces the link in an object store."""
FIRST_LATEST = "latest-rank0.pt"
"""The link that all ranks follow."""
RANKS = "ranks"
"""Display name of a save's number of ranks."""

_COUNTED = "ep(?P<epoch>[0-9]{1,18})-ba(?P<batch>[0-9]{1,18})"
FOLDER = _COUNTED
FILE = rf"{_COUNTED}(?:-rank(?P<rank>[0-9]{{1,9}}))?\.pt"

_COUNTED_FOLDER = "ep[0-9]{1,18}-ba[0-9]{1,18}"
_LIKE_FOLDER = r"(?s:(?:.*[^A-Za-z])?(?:ba|ep)[0-9]+.*)"
"""Pattern for the name of a folder if the user set `sharded_ckpt_prefix_dir`."""


def batch_in(name: str) -> int | None:
    """Return the number of batches in a name of Composer's own form; None for any other name."""
    match = re.fullmatch(FILE, name) or re.fullmatch(FOLDER, name)
    return None if match is None else int(match["batch"])


def may_be_folder(name: str) -> bool:
    """Return whether a folder of slices with this name may be a save: the user may have set its name."""
    return is_latest(name) or re.fullmatch(_LIKE_FOLDER, name) is not None


def is_latest(name: str) -> bool:
    """Return whether a name is that of the link to the last save."""
    return re.fullmatch(LATEST, name) is not None


def recognise(listing: Listing) -> bool:
    """Recognize saves by their names; folders with other names, by the counters in the record of one of them."""
    from ckpttool.core.storage.base import Kind  # help that lists the layouts reads no folder

    names = [entry.name for entry in (*listing.beginning("ep"), *listing.beginning("latest-rank"))]
    files = {entry.name for entry in listing.entries if entry.kind is not Kind.FOLDER}
    if any(
        name in files and re.fullmatch(pattern, name) for name in names for pattern in (FILE, LATEST, REMOTE_LATEST)
    ):
        return True
    if any(is_store(inner) for _, inner in listing.inside(_COUNTED_FOLDER)):
        return True
    for folder, inner in listing.inside(_LIKE_FOLDER):
        if METADATA in inner:
            return TIME.encode() in (listing.record(f"{folder}/{METADATA}") or b"")
    return False


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder with its contents, or a file, belongs."""
    from ckpttool.core.storage.base import Kind  # help that lists the layouts reads no folder

    if not folder:
        is_save = file is not None and (is_latest(file) or re.fullmatch(FILE, file) is not None)
        return Part.of_save(file) if file is not None and is_save else None
    name = folder.partition("/")[0]
    if not any(entry == (name, Kind.FOLDER) for entry in listing.beginning(name)[:1]):
        return None
    if not may_be_folder(name):
        return None
    return Part.of_save(name) if re.fullmatch(FOLDER, name) or is_store(listing.names_in(name)) else None


LAYOUT = LayoutSigns(
    name="composer",
    sign="ep*-ba*",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.composer.layout:ComposerLayout",
)
TRAINER = Trainer(
    name="composer",
    title="Composer",
    records=REMOTE_LATEST,
    only_after_saves=REMOTE_LATEST,
    places=("checkpoints",),
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.composer:LAYOUT",),
    loaders_at="ckpttool.trainers.composer.loaders:loaders",
    configs_at="ckpttool.trainers.composer.config:CONFIGS",
    simulator_at="ckpttool.trainers.composer.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.composer.effects:objections",
    effects_at="ckpttool.trainers.composer.effects:effects",
    weights_at="ckpttool.trainers.composer.weights:weights",
)
