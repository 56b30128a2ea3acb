"""A `.distcp` of torch.distributed.checkpoint: consecutive archives of `torch.save`, one per slice.

The end of an archive shows its beginning, so the file is read backwards, without a record of the archives' positions.

Source:
    `torch/distributed/checkpoint/filesystem.py` of torch 2.13 (`_write_item`), and 201 files of six trainers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, Severity, damage, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.units import counted
from ckpttool.core.formats.base import MAX_FINDINGS, over_limit
from ckpttool.core.formats.torch.contents import TorchContents, torch_contents
from ckpttool.core.formats.torch.part import FilePart
from ckpttool.core.formats.torch.shard import look_at_pickles
from ckpttool.core.formats.torch.zip_directory import ZipDirectory, ZipEntry, read_zip_directory
from ckpttool.core.formats.torch.zip_end import archive_begin
from ckpttool.core.storage.base import ByteSource

if TYPE_CHECKING:
    from ckpttool.core.domain.contents import Value

MOST_SLICES = 1_000_000
"""Maximum number of slices per file; the files of a large model have a few thousand."""


def read_zips(source: ByteSource, *, thoroughly: bool) -> ZipDirectory:
    """Read the ends, directories and pickles of all archives in a file.

    Args:
        source: The open file.
        thoroughly: If False, read only the last archive, which shows whether the file was truncated.

    Returns:
        The records of the archives, whose names contain the position of their slice, and every inconsistency.

    Raises:
        OSError: The disk did not answer.
    """
    spans, findings, nbytes = _spans(source, most=MOST_SLICES if thoroughly else 1)
    entries: list[ZipEntry] = []
    for begin, end in spans:
        part = FilePart(source, begin, end)
        directory = read_zip_directory(part)
        pickled, pickle_bytes = look_at_pickles(part, directory.entries)
        nbytes += directory.bytes_read + pickle_bytes
        findings += [_placed(finding, begin) for finding in (*directory.findings, *pickled)]
        entries += [_in_slice(entry, begin) for entry in directory.entries]
        if len(findings) >= MAX_FINDINGS:
            break
    grave = worst(findings) > Severity.SUSPECT
    return ZipDirectory(
        entries=() if grave else tuple(entries), findings=tuple(findings[:MAX_FINDINGS]), bytes_read=nbytes
    )


def zips_contents(source: ByteSource, records: Iterable[ZipEntry], names: Mapping[int, str]) -> TorchContents:
    """Return the contents of a file's slices.

    Args:
        source: The open file.
        records: The records of its slices, with names from `read_zips`.
        names: The names of the slices, by their first bytes.

    Raises:
        OSError: The disk did not answer.
    """
    slices: dict[int, list[ZipEntry]] = defaultdict(list)
    for record in records:
        base, _, place = record.name.rpartition(_AT)
        at = int(place)
        slices[at].append(ZipEntry(name=base, crc32=record.crc32, begin=record.begin - at, end=record.end - at))
    entries: list[TensorEntry] = []
    values: list[tuple[str, Value]] = []
    unread = 0
    for begin, own_records in sorted(slices.items()):
        contents = torch_contents(FilePart(source, begin, source.stamp.size), own_records)
        name = names.get(begin, f"slice at byte {begin}")
        entries += [_as_part_of(entry, name, begin) for entry in contents.entries]
        values += [(_joined(name, path), value) for path, value in contents.values]
        unread += contents.unread
    return TorchContents(entries=tuple(entries), values=tuple(values), unread=unread)


def _as_part_of(entry: TensorEntry, name: str, begin: int) -> TensorEntry:
    spans = tuple((first + begin, last + begin) for first, last in entry.spans)
    return TensorEntry(name=_joined(name, entry.name), dtype=entry.dtype, shape=entry.shape, spans=spans)


def _joined(name: str, path: str) -> str:
    return f"{name}.{path}" if path else name


def slice_of(name: str) -> int | None:
    """Return the start of the slice that a record's name contains; None if the name contains no start."""
    at = name.rpartition(_AT)[2]
    return int(at) if _AT in name and at.isdecimal() else None


_AT = " of the slice at byte "


def _in_slice(entry: ZipEntry, begin: int) -> ZipEntry:
    name = f"{entry.name}{_AT}{begin}"
    return ZipEntry(name=name, crc32=entry.crc32, begin=entry.begin + begin, end=entry.end + begin)


def _placed(finding: Finding, begin: int) -> Finding:
    return replace(finding, message=f"In the slice at byte {begin}: {finding.message}")


def archives_of(source: ByteSource) -> list[tuple[int, int]]:
    """Return the byte ranges of a file's archives, in order; if an archive is inconsistent, only those after it.

    Raises:
        OSError: The disk did not answer.
    """
    return _spans(source, most=MOST_SLICES)[0]


def _spans(source: ByteSource, *, most: int) -> tuple[list[tuple[int, int]], list[Finding], int]:
    """Return the byte ranges of the last archives in file order, their problems, and the number of bytes read."""
    end, nbytes = int(source.stamp.size), 0
    spans: list[tuple[int, int]] = []
    while end > 0 and len(spans) < most:
        begin, read = archive_begin(source, end)
        nbytes += read
        if begin is None:
            return spans[::-1], [_no_end(end, len(spans))], nbytes
        spans.append((begin, end))
        end = begin
    if end > 0 and most == MOST_SLICES:
        return spans[::-1], [over_limit(f"The file has more than {MOST_SLICES} slices.")], nbytes
    return spans[::-1], [], nbytes


def _no_end(end: int, trailing: int) -> Finding:
    if not trailing:
        message = f"No slice ends at byte {end}, the end of the file: it was truncated or overwritten."
        return damage(Code.SHARD_TRUNCATED, message, expected="a slice that ends with the file")
    message = f"No slice ends at byte {end}, where the next one begins; {counted(trailing, 'complete slice')} follow."
    return damage(Code.HEADER_INVALID, message, expected="a slice that ends there")
