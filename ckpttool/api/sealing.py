"""Sealing: put what was read of a whole checkpoint into its manifest, atomically, and lose nothing of an older one."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, Protocol

from ckpttool.domain.checkpoint import Checkpoint, LayoutName
from ckpttool.domain.finding import Code, Finding, Severity, blocking
from ckpttool.domain.manifest import Manifest, Sealing, ShardSeal
from ckpttool.domain.verdict import ShardReport, Verdict
from ckpttool.errors import UnsafeError
from ckpttool.records import OWN_FOLDER
from ckpttool.records.manifest import ManifestProblem, manifest_path, read_manifest
from ckpttool.storage.base import Storage
from ckpttool.write import ensure_folder, locked, replace

LOCK_NAME = "seal"
"""Below `.ckpttool/`: one lock for a tree, so that no lock file lies in a checkpoint's own folder."""

PATIENCE_SECONDS = 30.0
"""To wait for another sealer. Under the lock nothing but the manifest is read and written."""


class Merge(Protocol):
    """`decide.sealing.merge`; this room does not see that one."""

    def __call__(self, old: Manifest | None, new: Manifest, *, reseal: bool) -> tuple[Manifest, tuple[Finding, ...]]:
        """Return what is to be kept, and what differs from `old`."""
        ...


class Spell(Protocol):
    """`render.manifest.manifest_bytes`."""

    def __call__(self, manifest: Manifest) -> bytes:
        """Return the file."""
        ...


class SealOrder(NamedTuple):
    """How to seal, whichever the checkpoint."""

    merge: Merge
    spell: Spell
    now: float
    """Unix seconds."""
    by: str
    """Version of ckpttool."""
    reseal: bool = False
    """Take what is on the disk now, where it differs from what was sealed or where the manifest cannot be read."""


def seal_checkpoint(
    storage: Storage, layout: LayoutName, checkpoint: Checkpoint, verdict: Verdict, order: SealOrder
) -> Sealing:
    """Write the manifest of a checkpoint that is whole, or add to the one that is there.

    A manifest must not bless damage: where anything weighs more than a note nothing is written, and the answer says
    what stands against it. It is refused too where the manifest that is there cannot be believed (without `reseal`),
    and where a file changed since its bytes were read.

    Args:
        storage: The tree.
        layout: Its layout.
        checkpoint: Of this tree, with the world size as far as it is known.
        verdict: On this checkpoint, of all its shards, every byte read, with digests. It must come from the files
            alone: whether they agree with an older manifest is found out here, under the lock.
        order: How to seal.

    Returns:
        What is recorded now. Its findings are reasons to refuse where `manifest` is None, else what differs from the
        values recorded before, which were kept.

    Raises:
        ValueError: A shard has no report with a digest.
        LockedError: Another process is sealing in this tree.
        UnsafeError: The checkpoint's folder is a link out of the tree, through which nothing is written.
        WriteFailedError: Nothing was changed.
        NotDurableError: The manifest is in place, but the disk did not confirm it.
    """
    path = manifest_path(layout, checkpoint)
    if against := blocking(verdict.findings):
        return _refused(checkpoint, path, against)
    new = _manifest(layout, checkpoint, verdict, order)
    target = _target(storage.root, path)
    with locked(f"{storage.root}/{OWN_FOLDER}/{LOCK_NAME}", timeout=PATIENCE_SECONDS):
        old = read_manifest(storage, path)
        if isinstance(old, ManifestProblem):
            if old.newer or not order.reseal:
                return _refused(checkpoint, path, (old.finding,))
            old = None
        if moved := _changed_since(storage, verdict):
            return _refused(checkpoint, path, moved)
        merged, findings = order.merge(old, new, reseal=order.reseal)
        written = merged != old
        if written:
            replace(target, order.spell(merged), overwrite=True, backup=False)
    return Sealing(checkpoint=checkpoint.name, path=path, manifest=merged, written=written, findings=findings)


def _refused(checkpoint: Checkpoint, path: str, findings: tuple[Finding, ...]) -> Sealing:
    return Sealing(checkpoint=checkpoint.name, path=path, manifest=None, written=False, findings=findings)


def _manifest(layout: LayoutName, checkpoint: Checkpoint, verdict: Verdict, order: SealOrder) -> Manifest:
    reports = {report.path: report for report in verdict.reports}
    if reports.keys() != {shard.path for shard in checkpoint.shards}:
        raise ValueError(f"the verdict on {checkpoint.name} is not one on all its shards")
    now = datetime.fromtimestamp(order.now, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Manifest(
        layout=layout,
        checkpoint=checkpoint.name,
        prefix=checkpoint.prefix,
        world_size=checkpoint.topology.world_size,
        sealed_at=now,
        sealed_by=order.by,
        shards=tuple(_seal(reports[path], now) for path in sorted(reports)),
    )


def _seal(report: ShardReport, now: str) -> ShardSeal:
    if report.digest is None or report.stamp is None or report.format is None:
        raise ValueError(f"{report.path} was not hashed as a whole")
    return ShardSeal(
        path=report.path,
        size=report.stamp.size,
        xxh3_128=report.digest.xxh3_128,
        chunks=report.digest.chunks,
        format=report.format,
        schema_hash=report.schema_hash,
        scalars=report.scalars,
        first_seen=now,
    )


def _target(root: str, path: str) -> str:
    """Return the full path, with a folder to write into that is really in the tree."""
    # Always needed, for the lock.
    ensure_folder(f"{root}/{OWN_FOLDER}")
    target = Path(root, path)
    if not target.parent.resolve().is_relative_to(Path(root).resolve()):
        raise UnsafeError(
            f"{str(target.parent)!r} is a link that leads out of the tree, and nothing is written through such a link; "
            "seal the tree that it leads to"
        )
    return str(target)


def _changed_since(storage: Storage, verdict: Verdict) -> tuple[Finding, ...]:
    """Find files that are no longer those whose bytes were read: minutes may lie between the two."""
    return tuple(
        Finding(
            code=Code.CHANGED_WHILE_READING,
            severity=Severity.UNKNOWN,
            message="changed after it was read: somebody writes it",
            path=report.path,
            remedy="seal again when the save has ended",
        )
        for report in verdict.reports
        if not _is_same(storage, report)
    )


def _is_same(storage: Storage, report: ShardReport) -> bool:
    try:
        return storage.stamp(report.path) == report.stamp
    except OSError:
        return False
