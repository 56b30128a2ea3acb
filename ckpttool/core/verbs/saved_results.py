"""Saved results about a tree, stored outside the tree, and the findings about its checkpoints in these results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import IncompleteError
from ckpttool.core.records import SealPlace, own_cache
from ckpttool.core.storage.base import Storage

if TYPE_CHECKING:
    from ckpttool.core.records.damaged import FoundDamaged

DAMAGED = "damaged"
"""The folder of results about damage, which most users do not have."""


def memory_place(root: str, kind: str = "ledger") -> str | None:
    """Return the file that stores the results about a tree, which may be gone; None if there is no cache folder."""
    from ckpttool.core.records.ledger import ledger_place
    from ckpttool.core.storage.mounts import boot_id, disk_identity, mount_table, nearest_existing

    disk = disk_identity(nearest_existing(root), table=mount_table(), boot=boot_id())
    return ledger_place(root, os.environ, disk=disk, kind=kind)


def found_damaged(root: str) -> Mapping[str, FoundDamaged]:
    """Return damage found by earlier reads on this machine, by path; empty for most trees."""
    base = own_cache(os.environ)
    if base is None or not os.path.isdir(f"{base}/{DAMAGED}"):
        return {}
    from ckpttool.core.records.damaged import read_damaged

    return read_damaged(memory_place(root, DAMAGED))


def with_found_damaged(
    inventory: Inventory,
    storage: Storage,
    seal_place: Callable[[Checkpoint], SealPlace | None],
    damaged: Mapping[str, FoundDamaged],
    stamp_of: Callable[[str], FileStamp],
) -> Inventory:
    """Attach damage found earlier to checkpoints whose files have not changed.

    Args:
        inventory: The inventory with the findings of the scan.
        storage: The storage of the tree.
        seal_place: Returns the place of a checkpoint's seal.
        damaged: The damage found, by path.
        stamp_of: Returns the stamp of a file, by its path.
    """
    if not damaged:
        return inventory
    from ckpttool.core.decide.drift import Drift, with_drift
    from ckpttool.core.records.birth import recorded
    from ckpttool.core.records.damaged import found_before

    def said(checkpoint: Checkpoint, files: list[FoundDamaged]) -> list[Finding]:
        place = seal_place(checkpoint) if any(file.seal for file in files) else None
        manifest = None if place is None else recorded(storage, place, checkpoint.shards).manifest
        seals = {} if manifest is None else manifest.by_path
        findings = []
        for file in files:
            sealed = seals.get(file.path)
            if file.seal is not None and (sealed is None or sealed.xxh3_128 != file.seal):
                continue  # it was compared with a record that is no longer valid
            try:
                finding = found_before(file, stamp_of(file.path))
            except OSError:  # the next reader of the file will report its problem
                continue
            if finding is not None:
                findings.append(replace(finding, ranks=ranks_of(checkpoint, file.path)))
        return findings

    def ranks_of(checkpoint: Checkpoint, path: str) -> tuple[Rank, ...]:
        return tuple(shard.rank for shard in checkpoint.shards if shard.path == path and shard.rank is not None)

    def judged(checkpoint: Checkpoint) -> Checkpoint:
        files = [damaged[path] for path in sorted({shard.path for shard in checkpoint.shards} & damaged.keys())]
        findings = said(checkpoint, files) if files else []
        drifts.extend(
            Drift(checkpoint=checkpoint, shard=shard, since=since)
            for finding in findings
            if finding.code is Code.REPLICA_DRIFTED
            for shard in checkpoint.shards
            if shard.path == finding.path and (since := damaged[shard.path].since) is not None
        )
        return replace(checkpoint, findings=(*checkpoint.findings, *findings)) if findings else checkpoint

    drifts: list[Drift] = []
    return with_drift(replace(inventory, checkpoints=tuple(map(judged, inventory.checkpoints))), drifts)


_SMALL_MANIFEST = 4 << 20
"""Maximum bytes of a manifest that is read for a list, enough for about ten thousand shards."""


def with_healed(
    inventory: Inventory, storage: Storage, seal_place: Callable[[Checkpoint], SealPlace | None]
) -> Inventory:
    """Attach to checkpoints the findings about rebuilt shards, from their manifests; a huge manifest is not read."""
    from ckpttool.core.decide.sealing import healed_notes
    from ckpttool.core.domain.manifest import Manifest
    from ckpttool.core.records.manifest import read_manifest

    def told(checkpoint: Checkpoint) -> Checkpoint:
        place = seal_place(checkpoint)
        try:
            if place is None or storage.stamp(place.path).size > _SMALL_MANIFEST:
                return checkpoint
        except OSError:  # most checkpoints have no manifest
            return checkpoint
        manifest = read_manifest(storage, place)
        notes = tuple(healed_notes(checkpoint, manifest.shards)) if isinstance(manifest, Manifest) else ()
        return replace(checkpoint, findings=(*checkpoint.findings, *notes)) if notes else checkpoint

    return replace(inventory, checkpoints=tuple(map(told, inventory.checkpoints)))


def rebuilt(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return the attached findings about rebuilt shards."""
    return tuple(finding for finding in checkpoint.findings if finding.code is Code.HEALED)


def saves_in_trash(storage: Storage) -> int:
    """Count the saves in the trash, for a hint to the user."""
    from ckpttool.core.records.journal import trash_folders

    try:
        return len(list(trash_folders(storage)))
    except IncompleteError:
        return 0
