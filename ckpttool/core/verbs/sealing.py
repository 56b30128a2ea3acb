"""Sealing: record the digests of an intact checkpoint in its manifest, atomically, and keep earlier entries."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ckpttool import __version__
from ckpttool.core.decide.sealing import manifest_of, merge
from ckpttool.core.decide.steps import not_acted_on
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, unknown
from ckpttool.core.domain.frozen import replace as with_fields
from ckpttool.core.domain.manifest import Manifest, Sealed, Sealing
from ckpttool.core.domain.question import CheckQuestion
from ckpttool.core.domain.units import moment
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict
from ckpttool.core.errors import UnknownLayoutError, UnsafeError
from ckpttool.core.records import OWN_FOLDER, SealPlace
from ckpttool.core.records.birth import with_births
from ckpttool.core.records.manifest import ManifestProblem, added_manifests, manifest_bytes, read_manifest
from ckpttool.core.storage import assert_changeable, is_object_store
from ckpttool.core.storage.base import Storage
from ckpttool.core.verbs.scanning import Tree, Where, tree_of
from ckpttool.core.verbs.verifying import Running, chosen, session_for
from ckpttool.core.verify.session import Session
from ckpttool.core.write.files import ensure_folder, locked, remove, replace
from ckpttool.core.write.reserve import keep_reserve
from ckpttool.trainers.base import Refusal

TO_SEAL = CheckQuestion(level=Level.CHECKSUM, hashes=True)
"""The check before sealing, which reads all bytes and compares copies.

Other saves may show which tensors are copies.
"""

PATIENCE_SECONDS = 30.0
"""Seconds to wait for another process that seals. Under the lock, only the manifest is read and written."""


def seal(
    tree: Tree | Where = None,
    name: str | tuple[str, ...] | None = None,
    *,
    reseal: bool = False,
    jobs: int | None = None,
) -> Running[Sealing, Sealed]:
    """Record the checksums of one or all intact checkpoints, newest first.

    Args:
        tree: The answer of `scan`, or a question about a tree.
        name: A checkpoint's name, `latest` or `all`, or several of these; None or empty for the latest.
        reseal: Record the current content if it differs from the seal.
        jobs: Threads that read; None for one per core.

    Raises:
        UsageError: The named checkpoint does not exist.
        UnknownLayoutError: The layout has no place for a seal of any of these checkpoints.
        UnsafeError: The tree is neither a folder on this machine nor in an object store, a link points outside it, or a
            stored object would have to be replaced.
        LockedError: Another process is sealing in this tree.
        WriteFailedError: Nothing was changed.
        NotDurableError: A manifest is in place, but the disk did not confirm it.
    """
    read_tree = tree_of(tree)
    return Running(
        _sealed(read_tree, name, reseal=reseal, jobs=jobs),
        lambda sealings: Sealed(inventory=read_tree.inventory, sealings=tuple(sealings)),
    )


def _sealed(
    tree: Tree, name: str | tuple[str, ...] | None, *, reseal: bool, jobs: int | None
) -> Generator[Sealing, None, None]:
    in_store = is_object_store(tree.storage.root)
    if in_store and reseal:
        raise UnsafeError(
            f"{tree.inventory.root}: --reseal does not work in an object store, in which ckpttool replaces nothing"
        )
    if not in_store:
        assert_changeable(tree.storage.root)
    selected = chosen(tree, name)
    refusals = {
        checkpoint.key: place
        for checkpoint in selected
        if isinstance(place := tree.layout.seal_place(checkpoint), Refusal)
    }
    with closing(session_for(tree, with_fields(TO_SEAL, name=name, jobs=jobs))) as session:
        for checkpoint in selected:
            if checkpoint.key in refusals and len(refusals) < len(selected):  # the rest of its seal is not used
                why = f"{checkpoint.name} {refusals[checkpoint.key].why}"
                yield not_sealed(checkpoint, None, (unknown(Code.CANNOT_ANSWER, why),))
                continue
            sealed = tree.with_own_records(checkpoint)  # its records may show that some files do not belong to it
            verdict = session.verdict(sealed)
            if name == checkpoint.name:  # an explicit name selects one of two runs
                sealed = with_fields(sealed, findings=_but_of_runs(sealed.findings))
                verdict = with_fields(verdict, findings=_but_of_runs(verdict.findings))
            yield seal_read(tree, session, sealed, verdict, reseal=reseal)


def _but_of_runs(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.code is not Code.RUN_MIXED)


def seal_read(
    tree: Tree, session: Session, checkpoint: Checkpoint, verdict: Verdict, *, reseal: bool = False
) -> Sealing:
    """Seal the files that a session has read, as `seal_checkpoint` does, and save the related results."""
    sealing = seal_checkpoint(tree, checkpoint, verdict, now=time.time(), reseal=reseal)
    _keep_what_differs(session, verdict, sealing)
    # A checkpoint that cannot be pruned needs no reserve; a tracked one can be pruned once the record names another.
    is_moved = checkpoint.is_tracked or not isinstance(tree.layout.members(checkpoint), Refusal)
    if sealing.written and is_moved and not is_object_store(tree.storage.root):
        keep_reserve(f"{tree.storage.root}/{OWN_FOLDER}", files=len(checkpoint.shards))
    return sealing


def _keep_what_differs(session: Session, verdict: Verdict, sealing: Sealing) -> None:
    """Save the differences from the seal for later commands that read only headers."""
    if sealing.manifest is None:  # the session already knows of a refusal for the file's own checksum
        return
    reports = {report.path: report for report in verdict.reports}
    for finding in sealing.findings:
        if finding.code is Code.CHECKSUM_MISMATCH and finding.severity is Severity.DAMAGE:
            session.differs(reports[str(finding.path)], finding)


def seal_checkpoint(
    tree: Tree, checkpoint: Checkpoint, verdict: Verdict, *, now: float, reseal: bool = False
) -> Sealing:
    """Write the manifest of an intact checkpoint, or add to the existing manifest.

    A manifest must not hide damage: if any finding is more severe than a note, nothing is written, and the answer has
    the reasons. The seal is also refused if the existing manifest is invalid (without `reseal`), or if a file changed
    since its bytes were read.

    Args:
        tree: The tree, scanned with sizes.
        checkpoint: A checkpoint of this tree, with the world size if known.
        verdict: The verdict on this checkpoint: all shards, every byte read, with digests. It must come from the files
            alone: this function compares them with an older manifest, under the lock.
        now: Unix seconds.
        reseal: Record the current content if it differs from the seal, or if the seal is unreadable.

    Returns:
        The current record. If `manifest` is None, the findings are the reasons for the refusal; otherwise they are
        differences from the earlier values, which remain.

    Raises:
        ValueError: A shard has no report with a digest.
        UnknownLayoutError: The layout has no place for a seal.
        LockedError: Another process is sealing in this tree.
        UnsafeError: The checkpoint's folder is a link out of the tree; ckpttool does not write through it.
        WriteFailedError: Nothing was changed.
        NotDurableError: The manifest is in place, but the disk did not confirm it.
    """
    place = tree.layout.seal_place(checkpoint)
    if isinstance(place, Refusal):
        raise UnknownLayoutError(f"{tree.inventory.root} {place.why}")
    if against := speaks_against(checkpoint, verdict):
        return not_sealed(checkpoint, place, against)
    new = manifest_of(place.layout, checkpoint, verdict, at=moment(now), by=__version__)
    if is_object_store(tree.storage.root):
        return _sealed_as_addition(tree, checkpoint, verdict, place, new)
    target = writable_target(tree.storage.root, place.path)
    with no_other_sealer(tree.storage.root):
        old = read_manifest(tree.storage, place)
        if isinstance(old, ManifestProblem):
            if old.newer or not reseal:
                return not_sealed(checkpoint, place, (old.finding,))
            old = None
        elif old is not None and old.disputed and not reseal:
            return not_sealed(checkpoint, place, old.disputed)
        born = with_births(old, tree.storage, place, checkpoint.shards)
        if wrong := (() if reseal else born.findings) or changed_since(tree.storage, verdict.reports):
            return not_sealed(checkpoint, place, wrong)
        merged, findings = merge(born.manifest, new, reseal=reseal)
        written = merged != old
        if written:
            replace(target, manifest_bytes(merged), overwrite=True, backup=False)
        for path in added_manifests(tree.storage, place) if reseal else ():  # it contains everything relevant
            remove(f"{tree.storage.root}/{path}")
    return Sealing(
        checkpoint=checkpoint.name,
        path=place.path,
        manifest=merged,
        written=written,
        findings=findings,
        unproven=_unproven(verdict, born.manifest),
    )


def _unproven(verdict: Verdict, before: Manifest | None) -> int:
    """Count the shards whose current content is not proven by an earlier record, a checksum or a copy."""
    recorded = {} if before is None else before.by_path
    return sum(not report.is_proven and report.path not in recorded for report in verdict.reports)


def _sealed_as_addition(
    tree: Tree, checkpoint: Checkpoint, verdict: Verdict, place: SealPlace, new: Manifest
) -> Sealing:
    """Add a manifest under a unique name, because not every store can refuse to overwrite an object.

    A check for changed files is not needed, because every read was bound to the listing.
    """
    old = read_manifest(tree.storage, place)
    if isinstance(old, ManifestProblem):
        return not_sealed(checkpoint, place, (old.finding,))
    born = with_births(old, tree.storage, place, checkpoint.shards)
    if born.findings:
        return not_sealed(checkpoint, place, born.findings)
    merged, findings = merge(born.manifest, new, reseal=False)
    written, path = merged != old, place.path
    if written:
        from ckpttool.core.storage.objects import put_new

        time_of = new.sealed_at.translate({ord("-"): None, ord(":"): None})
        path = f"{place.additions_folder}/{time_of}-{secrets.token_hex(8)}.json"
        put_new(tree.storage.root, path, manifest_bytes(merged))
    return Sealing(
        checkpoint=checkpoint.name,
        path=path,
        manifest=merged,
        written=written,
        findings=findings,
        unproven=_unproven(verdict, born.manifest),
    )


@contextmanager
def no_other_sealer(root: str) -> Iterator[None]:
    """Take the tree's lock for sealing, which is outside the checkpoints' own folders."""
    with locked(f"{root}/{OWN_FOLDER}/seal", timeout=PATIENCE_SECONDS):
        yield


def speaks_against(checkpoint: Checkpoint, verdict: Verdict) -> tuple[Finding, ...]:
    """Return the findings against a checkpoint or about its step, without duplicates."""
    # A drifted replica was saved in this state, so it does not prevent a seal.
    reported = (finding for finding in blocking(verdict.findings) if finding.code is not Code.REPLICA_DRIFTED)
    return tuple(dict.fromkeys((*reported, *not_acted_on(checkpoint))))


def not_sealed(checkpoint: Checkpoint, place: SealPlace | None, findings: tuple[Finding, ...]) -> Sealing:
    """Return a result with the reason why nothing was sealed."""
    path = "" if place is None else place.path
    return Sealing(checkpoint=checkpoint.name, path=path, manifest=None, written=False, findings=findings)


def writable_target(root: str, path: str) -> str:
    """Return the full path of a target. Raise `UnsafeError` if a link leads its folder out of the tree."""
    # Always needed for the lock.
    ensure_folder(f"{root}/{OWN_FOLDER}")
    target = Path(root, path)
    if not target.parent.resolve().is_relative_to(Path(root).resolve()):
        raise UnsafeError(
            f"{str(target.parent)!r} is a link to a folder outside the tree, and ckpttool does not write through "
            f"it; seal the tree of its target"
        )
    return str(target)


def changed_since(storage: Storage, reports: Iterable[ShardReport]) -> tuple[Finding, ...]:
    """Find files that changed after their bytes were read, possibly minutes ago."""
    return tuple(
        unknown(
            Code.CHANGED_WHILE_READING,
            "changed after it was read: another process is writing it",
            path=report.path,
            remedy="seal it again when the save is complete",
        )
        for report in reports
        if not _is_same(storage, report)
    )


def _is_same(storage: Storage, report: ShardReport) -> bool:
    try:
        return storage.stamp(report.path) == report.stamp
    except OSError:
        return False
