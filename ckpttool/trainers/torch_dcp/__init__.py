"""torch.distributed.checkpoint (DCP): folders of slices, as custom training loops save them.

Several trainers' layouts are based on DCP: `store` reads one such folder, `saves` a tree of such folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

METADATA = ".metadata"
UNFINISHED = f"{METADATA}.tmp"
WRITER = re.compile(r"__(?P<rank>[0-9]{1,9})_[0-9]{1,9}\.distcp")
OF_RANK = re.compile(r"__(?P<rank>[0-9]{1,9})\.metadata")


def is_store(names: Iterable[str]) -> bool:
    """Return whether a folder with these names is a store, finished or not."""
    return any(name == METADATA or OF_RANK.fullmatch(name) or WRITER.fullmatch(name) for name in names)


def is_own(name: str) -> bool:
    """Return whether torch uses a file name in a store, finished or temporary."""
    return name == UNFINISHED or is_store((name,))


def is_committed(names: Iterable[str]) -> bool:
    """Return whether the names in a folder include a record, which is written last."""
    return any(name == METADATA or OF_RANK.fullmatch(name) for name in names)


def recognise(listing: Listing) -> bool:
    """Recognize DCP folders by their contents, because no other way of saving writes such files."""
    return any(is_store(names) for _, names in listing.inside())


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong."""
    from ckpttool.core.records import OWN_FOLDER  # help that lists the layouts reads no folder
    from ckpttool.core.storage.base import Kind

    name = folder.partition("/")[0]
    entries = listing.beginning(name)[:1] if name and name != OWN_FOLDER else ()
    if not any(entry.name == name and entry.kind is Kind.FOLDER for entry in entries):
        return None
    return Part.of_save(name) if is_store(listing.names_in(name)) else None


LAYOUT = LayoutSigns(
    name="torch-dcp",
    sign=METADATA,
    gives_way=True,
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.torch_dcp.layout:TorchDcpLayout",
)
TRAINER = Trainer(
    name="torch-dcp",
    title="torch.distributed.checkpoint",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.torch_dcp:LAYOUT",),
    loaders_at="ckpttool.trainers.torch_dcp.loaders:loaders",
    simulator_at="ckpttool.trainers.torch_dcp.resumes:SIMULATOR",
    effects_at="ckpttool.trainers.torch_dcp.resumes:effects",
    weights_at="ckpttool.trainers.torch_dcp.weights:plain_weights",
)
