"""Contents of manifests. A new seal removes nothing from a manifest unless the user requests it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, damage, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import MOST_TENSORS_BYTES, Manifest, ShardSeal, differing_chunks
from ckpttool.core.domain.replicas import Proof, Trust
from ckpttool.core.domain.verdict import ShardReport, Verdict

_SHOWN_CHUNKS = 8  # maximum number of values in a message; a replaced file differs in all of them


def manifest_of(layout: str, checkpoint: Checkpoint, verdict: Verdict, *, at: str, by: str) -> Manifest:
    """Return a manifest with the results of checking an intact checkpoint.

    Args:
        layout: The layout of its tree.
        checkpoint: The checkpoint, with its world size if known.
        verdict: The verdict on all shards, with every byte read, and with digests.
        at: UTC, `2025-01-31T23:59:59Z`.
        by: Version of ckpttool.

    Raises:
        ValueError: A shard has no report with a digest.
    """
    reports = {report.path: report for report in verdict.reports}
    if reports.keys() != {shard.path for shard in checkpoint.shards}:
        raise ValueError(f"the verdict on {checkpoint.name} does not cover all its shards")
    return Manifest(
        layout=layout,
        checkpoint=checkpoint.name,
        prefix=checkpoint.prefix,
        world_size=checkpoint.topology.world_size,
        sealed_at=at,
        sealed_by=by,
        shards=_with_room(_seal(reports[path], at) for path in sorted(reports)),
    )


def with_more(mine: Manifest | None, new: Manifest) -> Manifest:
    """Add new seals to the earlier seals of a machine, which do not change."""
    return new if mine is None else replace(new, shards=_sorted({**new.by_path, **mine.by_path}))


def _with_room(seals: Iterable[ShardSeal]) -> tuple[ShardSeal, ...]:
    """Return the seals, without the digests of tensors if these would exceed the size limit of a manifest."""
    sealed_shards = tuple(seals)
    distinct = {seal.tensors for seal in sealed_shards if seal.tensors is not None}
    nbytes = sum(2 * len(tensors.digests) for tensors in distinct)
    nbytes += sum(len(name) + 4 for names in {tensors.names for tensors in distinct} for name in names)
    return (
        sealed_shards if nbytes <= MOST_TENSORS_BYTES else tuple(replace(seal, tensors=None) for seal in sealed_shards)
    )


def _seal(report: ShardReport, now: str) -> ShardSeal:
    if report.digest is None or report.stamp is None or report.format is None:
        raise ValueError(f"{report.path} was not hashed completely")
    return ShardSeal(
        path=report.path,
        size=report.stamp.size,
        xxh3_128=report.digest.xxh3_128,
        chunks=report.digest.chunks,
        format=report.format,
        schema_hash=report.schema_hash,
        scalars=report.scalars,
        first_seen=now,
        tensors=report.tensor_digests or None,
    )


def merge(old: Manifest | None, new: Manifest, *, reseal: bool) -> tuple[Manifest, tuple[Finding, ...]]:
    """Combine the recorded manifest with the manifest of the current files.

    Later damage is measured against the first record, so the first record stays if the two differ: a seal that accepts
    any content would hide the damage that it should reveal. A deleted shard stays recorded for the same reason: the
    manifest may be the only record of the last rank. New shards are added.

    Args:
        old: The manifest on the disk; None if no manifest exists.
        new: The manifest of the current files.
        reseal: Replace all records with the current ones; unchanged files keep their `first_seen`.

    Returns:
        The combined manifest (`old` itself if nothing is new), and the differences from it; with `reseal`, notes on the
        records that were replaced.
    """
    if old is None:
        return new, ()
    recorded = old.by_path
    current = {seal.path: _with_history(seal, recorded.get(seal.path)) for seal in new.shards}
    if reseal:
        return _changed(old, replace(new, shards=_sorted(current))), tuple(_sealed_anew(recorded, current))
    findings = [*_world(old, new)]
    for path, before in recorded.items():
        current_seal = current.get(path)
        if current_seal is None:
            findings.append(_file_gone(before))
        elif not current_seal.same_content(before):
            findings.append(_differs(before, current_seal))
        else:
            continue
        current[path] = before
    world = new.world_size if old.world_size is None else old.world_size
    return _changed(old, replace(new, world_size=world, shards=_sorted(current))), tuple(findings)


def _with_history(seal: ShardSeal, before: ShardSeal | None) -> ShardSeal:
    if before is None or not seal.same_content(before):
        return seal
    return replace(seal.with_more(before), first_seen=before.first_seen, healed=before.healed)


def _sorted(seals: dict[str, ShardSeal]) -> tuple[ShardSeal, ...]:
    return _with_room(seals[path] for path in sorted(seals))


def _changed(old: Manifest, new: Manifest) -> Manifest:
    """Return the old manifest if only the time and ckpttool's version differ, so that sealing twice changes nothing."""
    return old if replace(new, sealed_at=old.sealed_at, sealed_by=old.sealed_by) == old else new


def _differs(before: ShardSeal, current: ShardSeal) -> Finding:
    chunks = differing_chunks(before, current.size, current.chunks)
    numbers = ", ".join(map(str, chunks[:_SHOWN_CHUNKS])) + (", …" if len(chunks) > _SHOWN_CHUNKS else "")
    sizes = "" if before.size == current.size else f" and has {current.size} bytes instead of {before.size}"
    return damage(
        Code.CHECKSUM_MISMATCH,
        f"differs from its seal of {before.first_seen} in {len(chunks)} of "
        f"{max(len(before.chunks), len(current.chunks))} chunks of 64 MiB (from 0: {numbers}){sizes}; the old "
        "seal is kept",
        path=before.path,
        expected=before.xxh3_128,
        actual=current.xxh3_128,
        remedy="copy the shard again from an intact copy; if the change was intended, ckpttool seal --reseal",
    )


def _file_gone(before: ShardSeal) -> Finding:
    return damage(
        Code.SHARD_MISSING,
        f"was sealed on {before.first_seen} and is missing now; its seal is kept",
        path=before.path,
        remedy="copy the shard back; if it was removed or renamed on purpose, ckpttool seal --reseal",
    )


def _sealed_anew(recorded: dict[str, ShardSeal], current: dict[str, ShardSeal]) -> Iterator[Finding]:
    """Report the differences from an older seal, because damage among them is not reported again after the new seal."""
    for path, before in recorded.items():
        current_seal = current.get(path)
        if current_seal is None:
            yield note(Code.SHARD_MISSING, f"was sealed on {before.first_seen}; --reseal dropped its seal", path=path)
        elif not current_seal.same_content(before):
            message = f"differs from its seal of {before.first_seen}; --reseal recorded the current content"
            yield note(
                Code.CHECKSUM_MISMATCH, message, path=path, expected=before.xxh3_128, actual=current_seal.xxh3_128
            )


def _world(old: Manifest, new: Manifest) -> tuple[Finding, ...]:
    if None in {old.world_size, new.world_size} or old.world_size == new.world_size:
        return ()
    finding = damage(
        Code.WORLD_SIZE_DIFFERS,
        f"was sealed with {old.world_size} ranks and has {new.world_size} now; the old number is kept",
        expected=str(old.world_size),
        actual=str(new.world_size),
        remedy="if the change was intended, ckpttool seal --reseal",
    )
    return (finding,)


_PROVEN = {Proof.RECORDED: "by the layout's record", Proof.SEALED: "by its seal"}
_TRUSTED = {
    Trust.CHECKSUM: "and was verified by a checksum",
    Trust.COPY: "and equaled another rank's copy",
    Trust.NUMERICS: "and was intact, with plausible numbers",
}


def healed_notes(checkpoint: Checkpoint, seals: Iterable[ShardSeal]) -> Iterator[Finding]:
    """Yield a note for each rebuilt shard of a checkpoint, with its source, its proof and the time."""
    ranks = {shard.path: shard.rank for shard in checkpoint.shards}
    for seal in seals:
        rank, healed = ranks.get(seal.path), seal.healed
        if rank is not None and healed is not None:
            subject = "" if healed.tensor is None else f"its tensor {healed.tensor} was "
            same = _PROVEN.get(healed.proof, "they were equal at other checkpoints")
            message = (
                f"{subject}rebuilt on {healed.at} from rank {healed.rank}: its shard is a copy ({same}) "
                f"{_TRUSTED[healed.trust]}"
            )
            yield note(Code.HEALED, message, path=seal.path, ranks=(rank,))
