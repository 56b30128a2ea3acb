"""Checksums over every byte of a shard or a part, read once: those of the file, its zip records and the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckpttool.core.domain.finding import Code, Finding, Severity, damage, note, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import CHUNK_BYTES, ShardSeal, differing_chunks, tensors_in
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.shard import FormatName, TensorEntry
from ckpttool.core.domain.verdict import Level
from ckpttool.core.formats.base import Checksum, quoted
from ckpttool.core.formats.torch.dcp import slice_names
from ckpttool.core.formats.torch.zips import slice_of
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.verify.checks.structure import capped
from ckpttool.core.verify.kernels.digest import digest_pass
from ckpttool.core.verify.kernels.passes import PassResult, Wants
from ckpttool.core.verify.observation import Observation

MOST_ENTRIES = 100_000
"""Maximum number of tensors or zip records: ten times as many as in large shards, or 100 MB of memory."""

MOST_TENSORS = 4
"""Maximum number of tensors named in a message; a 64 MiB chunk of small tensors has thousands."""


def too_many(observed: Observation) -> Finding | None:
    """Refuse a file that consists only of headers, because counting its entries takes too much memory."""
    wants, entries = _wants(observed), _entries(observed)
    if len(entries) <= MOST_ENTRIES or not (wants.entry_crcs or wants.numerics):
        return None
    return unsafe(
        Code.OVER_LIMIT,
        f"has {len(entries)} tensors or records; ckpttool checks at most {MOST_ENTRIES} one by one",
        path=observed.task.path,
        expected=f"<= {MOST_ENTRIES}",
        actual=str(len(entries)),
    )


def read_content(observed: Observation, source: ByteSource, passed: Callable[[int], None] | None = None) -> PassResult:
    """Read the task's bytes.

    The bytes are read even if there is no checksum, because only reading finds a sector that the disk cannot return.

    Raises:
        OSError: The disk did not answer, or the file was truncated while it was read.
    """
    wants, part = _wants(observed), observed.task.part
    return digest_pass(source, entries=_entries(observed), wants=wants, span=part, passed=passed)


def _entries(observed: Observation) -> Sequence[TensorEntry]:
    entries = observed.header.entries if observed.header else ()
    if observed.records is None:
        return entries
    # Each record of a torch file is checked: as a tensor, if requested.
    tensors = {entry.spans: entry for entry in entries}
    records = (record.as_entry() for record in observed.records.entries)
    return tuple(tensors.get(entry.spans, entry) for entry in records)


def _wants(observed: Observation) -> Wants:
    task, checksum = observed.task, observed.header.checksum if observed.header else None
    is_zip = observed.records is not None
    tensors = observed.header.entries if observed.header is not None and task.digests else ()
    if sealed_tensors(observed) is not None:
        tensors = ()
    return Wants(
        crc_end=checksum.end if checksum is not None and checksum.algorithm == "crc32-file" else None,
        xxh=task.hashes,
        chunks=task.seal is not None,
        sha256=task.sha256 is not None,
        entry_crcs=is_zip or (checksum is not None and checksum.algorithm == "crc32-entries"),
        numerics=task.level is Level.NUMERICS,
        tensors=tensors if len(tensors) <= MOST_ENTRIES else (),
    )


def sealed_tensors(observed: Observation) -> TensorDigests | None:
    """Return the manifest's digests of a file's tensors, or None if the manifest's checksums do not prove the tensors.

    The digests need not be computed again, because each tensor matches the seal if every chunk does. For a file that
    does not match, the digests are unknown, because the manifest reports the damage.
    """
    task, seal, stamp = observed.task, observed.task.seal, observed.report.stamp
    if seal is None or stamp is None or not task.digests or observed.header is None:
        return None
    is_same = (seal.size, seal.schema_hash) == (stamp.size, observed.report.schema_hash)
    return seal.tensors if is_same else None


def judge_checksums(observed: Observation, content: PassResult) -> tuple[bool, tuple[Finding, ...]]:
    """Compare every available checksum.

    Args:
        observed: The header.
        content: The results for all bytes of the file.

    Returns:
        Whether there was at least one checksum and all agreed, and the findings about disagreements; if there are no
        checksums, a note.

    Raises:
        ValueError: A tensor was not read completely.
    """
    findings: list[Finding] = []
    compared = 0
    embedded = observed.header.checksum if observed.header else None
    if embedded is not None:
        compared += 1
        findings += _embedded(observed, content, embedded)
    if observed.records is not None and observed.records.verifiable:
        compared += 1
        findings += capped(_records(observed, content))
    if observed.task.seal is not None:
        compared += 1
        findings += capped(_sealed(observed, content, observed.task.seal))
    if observed.task.sha256 is not None:
        compared += 1
        findings += differing_sha256(observed.task.path, observed.task.sha256, content.sha256)
    if not compared:
        findings.append(_nothing_to_compare(observed))
    return bool(compared) and not any(finding.severity > Severity.NOTE for finding in findings), tuple(findings)


def _embedded(observed: Observation, content: PassResult, checksum: Checksum) -> Iterator[Finding]:
    if checksum.algorithm == "crc32-file":
        if content.crc32 != checksum.value:
            yield _mismatch(
                observed, f"the CRC32 of all {checksum.end} bytes before the trailer", checksum.value, content.crc32
            )
    elif not content.entries_crc().matches(checksum.value):
        yield _mismatch(observed, "crc_num, over every tensor's name and data,", checksum.value, None)


def _records(observed: Observation, content: PassResult) -> Iterator[Finding]:
    recorded = {record.begin: record for record in observed.records.entries} if observed.records else {}
    names: dict[int, str] | None = None
    for entry in content.entries:
        record = recorded.get(entry.entry.spans[0][0])
        if record is None or entry.crc32 == record.crc32:
            continue
        begin = _slice_begin(observed, record.name)
        if begin is not None and names is None:
            names = slice_names(open_storage(observed.task.root), observed.task.path)
        tensor = None if begin is None else (names or {}).get(begin)
        where = quoted(record.name) if tensor is None else f"{quoted(tensor)}, in the slice at byte {begin},"
        label = f"the CRC32 of zip record {where}" if tensor is None else f"the CRC32 of {where}"
        yield replace(_mismatch(observed, label, record.crc32, entry.crc32), tensor=tensor)


def _slice_begin(observed: Observation, name: str) -> int | None:
    return slice_of(name) if observed.report.format is FormatName.TORCH_ZIPS else None


def _sealed(observed: Observation, content: PassResult, seal: ShardSeal) -> Iterator[Finding]:
    """Compare the file with the manifest, chunk by chunk, to name the damaged range and its tensors."""
    size = observed.report.stamp.size if observed.report.stamp else 0
    if size != seal.size:
        yield damage(
            Code.CHECKSUM_MISMATCH,
            f"has {size} bytes, but the manifest recorded {seal.size} on {seal.first_seen}",
            path=observed.task.path,
            expected=str(seal.size),
            actual=str(size),
        )
        return
    chunks = [chunk.xxh128 or "" for chunk in content.chunks]
    for index in differing_chunks(seal, size, chunks):
        begin, end = index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, size)
        names = tensors_in(observed.header.entries if observed.header else (), begin, end)
        more = f" and {len(names) - MOST_TENSORS} more tensors" if len(names) > MOST_TENSORS else ""
        touched = f"with {', '.join(map(quoted, names[:MOST_TENSORS]))}{more}" if names else "outside all tensors"
        yield damage(
            Code.CHECKSUM_MISMATCH,
            (f"bytes {begin} to {end} (chunk {index}, {touched}) differ from the manifest of {seal.first_seen}"),
            path=observed.task.path,
            expected=seal.chunks[index],
            actual=chunks[index],
            remedy="resume from another checkpoint, or copy this shard again from an intact copy",
        )


def differing_sha256(path: str, expected: str, actual: str | None) -> tuple[Finding, ...]:
    """Report that a file differs from the digest that its trainer recorded.

    Args:
        path: The path of the file.
        expected: The recorded digest.
        actual: The actual digest.
    """
    if actual == expected:
        return ()
    return (
        damage(
            Code.CHECKSUM_MISMATCH,
            f"its SHA-256 differs from the one in the save's own record (recorded {expected[:16]}…, computed "
            f"{(actual or '')[:16]}…): the content changed after it was saved",
            path=path,
            expected=expected,
            actual=actual,
            remedy="resume from another checkpoint, or copy this file again from an intact copy",
        ),
    )


def _mismatch(observed: Observation, label: str, expected: int | None, actual: int | None) -> Finding:
    computed = f", computed {actual:08x}" if actual is not None else ""
    return damage(
        Code.CHECKSUM_MISMATCH,
        f"{label} does not match (recorded {expected or 0:08x}{computed}): the content changed after it was saved",
        path=observed.task.path,
        expected=f"{expected or 0:08x}",
        actual=None if actual is None else f"{actual:08x}",
        remedy="resume from another checkpoint; the trainer does not check this checksum",
    )


def _nothing_to_compare(observed: Observation) -> Finding:
    zeros = observed.records is not None
    why = (
        "its zip records' CRC32s are all 0: not computed" if zeros else "it has no checksum, and no manifest covers it"
    )
    return note(
        Code.CHECKSUM_MISSING,
        f"every byte was read, but {why}; changed tensor data would not be detected",
        path=observed.task.path,
        remedy="ckpttool seal records checksums now, so that later damage is detected",
    )
