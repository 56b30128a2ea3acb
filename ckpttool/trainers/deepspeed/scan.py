"""List the tags in a folder, and read one model file of each tag up to its pickle."""

from __future__ import annotations

import re

from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    Inventory,
    Tracked,
)
from ckpttool.core.domain.finding import Code, Finding, blocking, in_order, note
from ckpttool.core.domain.units import Step
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage.base import Storage
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import (
    in_order_of_progress,
    one_run,
    stray,
    timed,
    tracked_by,
    tracked_in,
)
from ckpttool.trainers.deepspeed import LATEST_UNIVERSAL, TRAINER
from ckpttool.trainers.deepspeed_tags import DEFAULT_TAG, LATEST, WRITTEN_BESIDE
from ckpttool.trainers.deepspeed_tags.latest import latest_pointer
from ckpttool.trainers.deepspeed_tags.tag import scan_tag
from ckpttool.trainers.listing import Listing


def scan_tags(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the files in each tag, and read the record in one of its model files."""
    pointer = latest_pointer(storage) if listing.has(LATEST) else None
    tag = None if pointer is None else pointer.name
    scanned = map_waiting(
        lambda name: scan_tag(storage, name, options, is_latest=name == tag),
        [name for name in listing.folders() if name != OWN_FOLDER],
    )
    checkpoints = in_order_of_progress(checkpoint for checkpoint in scanned if checkpoint is not None)
    names = {checkpoint.name: checkpoint for checkpoint in checkpoints}
    known_names = {LATEST, LATEST_UNIVERSAL, OWN_FOLDER, *WRITTEN_BESIDE, *names}
    strays = [entry.name for entry in listing.entries if entry.name not in known_names]
    trouble = "is missing" if pointer is None else pointer.trouble
    findings = [stray(name) for name in strays]
    if trouble is not None or tag not in names:
        findings.append(_latest_disagrees(trouble, tag))
    tracked = None if tag is None else _tracked(storage, tag, names.get(tag))
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(tracked_by(timed(storage, checkpoints, tracked), tag)),
        runs=one_run(checkpoints),
        findings=in_order(findings),
        strays=tuple(strays),
        tracked=tracked,
    )


def _latest_disagrees(trouble: str | None, tag: str | None) -> Finding:
    message = f"`latest` {trouble}" if trouble is not None else f"`latest` names {tag}, which does not exist"
    effect = "DeepSpeed starts from scratch with a warning" if trouble == "is missing" else "DeepSpeed stops here"
    remedy = "load by tag, or point `latest` at the newest intact checkpoint: ckpttool repair pointer"
    return note(Code.TRACKER_DISAGREES, f"{message}: without a tag {effect}", path=LATEST, remedy=remedy)


def _tracked(storage: Storage, tag: str, named: Checkpoint | None) -> Tracked | None:
    """Return the progress according to `latest`; None if the tag's contents contradict its name."""
    if named is not None and blocking(named.findings):
        return None
    match = re.fullmatch(DEFAULT_TAG, tag)
    return tracked_in(storage, LATEST, tag, None if match is None else Step(int(match[1])))
