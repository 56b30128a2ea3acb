"""Every byte of a shard, or of a part of it, read once for all that is to be found out."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.domain.finding import Code, Finding, unsafe
from ckpttool.domain.shard import TensorEntry
from ckpttool.domain.verdict import Level
from ckpttool.storage.base import ByteSource
from ckpttool.verify.kernels.digest import digest_pass
from ckpttool.verify.kernels.passes import PassResult, Wants
from ckpttool.verify.observation import Observation

MOST_ENTRIES = 100_000
"""Tensors or zip records that are looked at one by one: ten times what large shards have, and 100 MB of memory."""


def too_many(observed: Observation) -> Finding | None:
    """Refuse a file that is all header: to count so many things takes more memory than a checker should."""
    wants, entries = _wants(observed), _entries(observed)
    if len(entries) <= MOST_ENTRIES or not (wants.entry_crcs or wants.numerics):
        return None
    return unsafe(
        Code.OVER_LIMIT,
        f"has {len(entries)} tensors or records; ckpttool looks at most at {MOST_ENTRIES} one by one",
        path=observed.task.path,
        expected=f"<= {MOST_ENTRIES}",
        actual=str(len(entries)),
    )


def read_content(observed: Observation, source: ByteSource) -> PassResult:
    """Read the task's bytes.

    Without any checksum to compare with they are read all the same: a sector that the disk cannot give back is
    found by reading it, and by nothing else.

    Raises:
        OSError: The disk did not answer, or the file was cut meanwhile.
    """
    return digest_pass(source, entries=_entries(observed), wants=_wants(observed), span=observed.task.part)


def _entries(observed: Observation) -> Sequence[TensorEntry]:
    if observed.records is not None:
        return tuple(record.as_entry() for record in observed.records.entries)
    return observed.header.entries if observed.header else ()


def _wants(observed: Observation) -> Wants:
    task, checksum = observed.task, observed.header.checksum if observed.header else None
    is_zip = observed.records is not None
    return Wants(
        crc_end=checksum.end if checksum is not None and checksum.algorithm == "crc32-file" else None,
        xxh=task.seal is not None or task.hashes,
        entry_crcs=is_zip or (checksum is not None and checksum.algorithm == "crc32-entries"),
        numerics=task.level is Level.NUMERICS and not is_zip,
    )
