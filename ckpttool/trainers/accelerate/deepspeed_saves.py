"""Saves of Accelerate with DeepSpeed: the model and the optimizer are in a tag, `checkpoint_0/pytorch_model/`.

Source: `Accelerator.save_state` of Accelerate 1.15, and its saves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.trainers.common.listed import by_rank
from ckpttool.trainers.hf_saves.save_folder import SaveFolder

if TYPE_CHECKING:
    from ckpttool.core.domain.units import Step
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.base import ScanOptions

TAG = r"pytorch_model(?:_[0-9]{1,9})?"
"""Name of the tag of a model; the second and later models have a number."""


class WithTags(NamedTuple):
    """A save, with the files of its tags."""

    save: SaveFolder
    step: Step | None
    """Global step of the first tag; None if there is no tag, or it has no record."""


def with_tags(storage: Storage, save: SaveFolder, options: ScanOptions) -> WithTags:
    """Add the files of DeepSpeed's tags to a save; a save without tags is unchanged."""
    names = sorted(name for name in save.names if re.fullmatch(TAG, name))
    if not names:
        return WithTags(save, None)
    from ckpttool.trainers.deepspeed_tags.tag import scan_tag

    found = (scan_tag(storage, save.path(name), options, is_latest=False) for name in names)
    tags = [tag for tag in found if tag is not None]
    expected = [save.expected, *(tag.expected for tag in tags)]
    paths = sorted({path for known in expected for path in known or ()})
    with_files = save._replace(
        shards=by_rank([*save.shards, *(shard for tag in tags for shard in tag.shards)]),
        findings=(*save.findings, *(finding for tag in tags for finding in tag.findings)),
        expected=None if None in expected else tuple(paths),
    )
    return WithTags(with_files, tags[0].step if tags else None)
