"""Every byte of a shard, or of a part of it, read once for all that is to be found out."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import TensorEntry
from ckpttool.domain.verdict import Level
from ckpttool.storage.base import ByteSource
from ckpttool.verify.kernels.digest import digest_pass
from ckpttool.verify.kernels.passes import PassResult, Wants
from ckpttool.verify.look import Look

MOST_ENTRIES = 100_000
"""Tensors or zip records that are looked at one by one: ten times what large shards have, and 100 MB of memory."""


def too_many(look: Look) -> Finding | None:
    """Refuse a file that is all header: to count so many things takes more memory than a checker should."""
    wants, entries = _wants(look), _entries(look)
    if len(entries) <= MOST_ENTRIES or not (wants.entry_crcs or wants.numerics):
        return None
    return Finding(
        code=Code.OVER_LIMIT,
        severity=Severity.UNSAFE,
        message=f"has {len(entries)} tensors or records; ckpttool looks at most at {MOST_ENTRIES} one by one",
        path=look.task.path,
        expected=f"<= {MOST_ENTRIES}",
        actual=str(len(entries)),
    )


def read_content(look: Look, source: ByteSource) -> PassResult:
    """Read the task's bytes.

    Without any checksum to compare with they are read all the same: a sector that the disk cannot give back is
    found by reading it, and by nothing else.

    Raises:
        OSError: The disk did not answer, or the file was cut meanwhile.
    """
    return digest_pass(source, entries=_entries(look), wants=_wants(look), span=look.task.part)


def _entries(look: Look) -> Sequence[TensorEntry]:
    if look.records is not None:
        return tuple(record.as_entry() for record in look.records.entries)
    return look.header.entries if look.header else ()


def _wants(look: Look) -> Wants:
    task, checksum = look.task, look.header.checksum if look.header else None
    is_zip = look.records is not None
    return Wants(
        crc_end=checksum.end if checksum is not None and checksum.algorithm == "crc32-file" else None,
        xxh=task.seal is not None or task.hashes,
        entry_crcs=is_zip or (checksum is not None and checksum.algorithm == "crc32-entries"),
        numerics=task.level is Level.NUMERICS and not is_zip,
    )
