"""DeepSpeed: its trees, and the save that it chooses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import ShardRole
from ckpttool.trainers.base import WHOLE_TREE, LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.deepspeed_tags import DEFAULT_TAG, LATEST, parse

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

LATEST_UNIVERSAL = "latest_universal"


def recognise(listing: Listing) -> bool:
    """Recognize a folder of tags by the files in the tags.

    A tag has model states, with optimizer states or with a `latest` file next to the tag. A tag with the default name
    may have only replica files: a machine other than the first that saves to its own disk has only those.
    """
    has_latest = listing.has(LATEST)
    for folder, names in listing.inside():
        files = [own for name in names if (own := parse(name)) is not None]
        roles = {own.role for own in files}
        if roles == {ShardRole.MODEL, ShardRole.OPTIMIZER} or (has_latest and ShardRole.MODEL in roles):
            return True
        if re.fullmatch(DEFAULT_TAG, folder) and any(own.replica is not None for own in files):
            return True
    return False


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a tag and its contents belong; `latest` belongs to all saves.

    The contents of a folder show whether it is a tag.
    """
    if not folder:
        return WHOLE_TREE if file == LATEST else None
    tag = folder.partition("/")[0]
    is_tag = re.fullmatch(DEFAULT_TAG, tag) is not None or (listing.has(tag) and any(map(parse, listing.names_in(tag))))
    return Part.of_save(tag) if is_tag else None


LAYOUT = LayoutSigns(
    name="deepspeed",
    sign="global_step*/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.deepspeed.layout:DeepSpeedTags",
)
TRAINER = Trainer(
    name="deepspeed",
    title="DeepSpeed",
    records=r"latest(?:_universal)?",
    only_after_saves=r"latest(?:_universal)?|zero_to_(?:fp32|torch)\.py",
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.deepspeed:LAYOUT",),
    loaders_at="ckpttool.trainers.deepspeed.loaders:loaders",
    configs_at="ckpttool.trainers.deepspeed.config:CONFIGS",
    simulator_at="ckpttool.trainers.deepspeed.resumes:SIMULATOR",
    objections_at="ckpttool.trainers.deepspeed_tags.tag:objections",
    effects_at="ckpttool.trainers.deepspeed.resumes:effects",
    weights_at="ckpttool.trainers.deepspeed.weights:weights",
)
