"""Saves of Lightning's DeepSpeed strategies: `epoch=1-step=12.ckpt/checkpoint/`, with `latest` beside that folder.

Source: `DeepSpeedStrategy.save_checkpoint` and `load_checkpoint` of Lightning 2.6.6, and its saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.records import MANIFEST_NAME
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.trainers.common.listed import listed_damage, stray
from ckpttool.trainers.deepspeed_tags import LATEST, WRITTEN_BESIDE
from ckpttool.trainers.deepspeed_tags.latest import latest_tag
from ckpttool.trainers.lightning import TAG

if TYPE_CHECKING:
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.base import ScanOptions


def is_with_deepspeed(checkpoint: Checkpoint) -> bool:
    """Return whether a save was written with DeepSpeed."""
    return any(shard.path.startswith(f"{checkpoint.name}/{TAG}/") for shard in checkpoint.shards)


def record_file(checkpoint: Checkpoint) -> str | None:
    """Return the path of a model file, which contains Lightning's record; None if there is no such file."""
    return next((shard.path for shard in checkpoint.shards if shard.role is ShardRole.MODEL), None)


def scan_folder(storage: Storage, name: str, options: ScanOptions) -> Checkpoint | None:
    """Return DeepSpeed's view of a save; None if the folder contains no tag that DeepSpeed loads.

    Raises:
        OSError: The folder cannot be listed.
    """
    from ckpttool.trainers.deepspeed_tags.tag import scan_tag

    tag = scan_tag(storage, f"{name}/{TAG}", options, is_latest=True)
    if tag is None:
        return None
    names = sorted(entry.name for entry in storage.entries(name))
    known_names = {TAG, LATEST, MANIFEST_NAME, *WRITTEN_BESIDE}
    strays = [stray(f"{name}/{other}") for other in names if other not in known_names]
    commit = CommitState.UNRECORDED if LATEST in names else CommitState.UNCOMMITTED
    findings = (*tag.findings, *strays, *(_latest(storage, name) if LATEST in names else ()))
    return replace(tag, commit=commit, findings=findings)


def _latest(storage: Storage, name: str) -> Iterator[Finding]:
    """Report a `latest` that does not name the tag: Lightning loads only the tag that it names."""
    path = f"{name}/{LATEST}"
    try:
        tag = latest_tag(storage, path)
    except OSError as error:
        yield unreadable(path, error)
        return
    if tag != TAG:
        message = f"`{LATEST}` names {tag!r} instead of {TAG}, so DeepSpeed does not find the save"
        yield listed_damage(Code.METADATA_INCOMPLETE, message, path)


def read_by_all(checkpoint: Checkpoint) -> ReadByAll:
    """Return `latest` and the model files that replicas share."""
    from ckpttool.trainers.deepspeed_tags.tag import shared_files

    return shared_files(checkpoint, f"{checkpoint.name}/{LATEST}")


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Report sizes that DeepSpeed refuses; other saves are loaded at any size."""
    if not is_with_deepspeed(checkpoint):
        return ()
    from ckpttool.trainers.deepspeed_tags.tag import objections as of_tag

    return of_tag(checkpoint, requested)
