"""Structure of a shard: headers and their text, sizes, scalars and the last bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, Severity, damage, unknown, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import TORCH_FORMATS, FormatName
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, ShardReport
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import CHECKSUM_KEY, Header, quoted
from ckpttool.core.formats.front import Front
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.verify.observation import Observation

if TYPE_CHECKING:
    from ckpttool.core.formats.torch.contents import TorchContents
    from ckpttool.core.formats.torch.zip_directory import ZipDirectory

_VALUES: dict[str, frozenset[str]] = {
    CHECKSUM_KEY: frozenset(),
    "format": frozenset({"ms", "pt", "np", "tf"}),
    "remove_redundancy": frozenset({"True", "False"}),
}
"""The keys that MindSpore writes, and the values that MindSpore and other writers use; a key with no values here
accepts any value.

Source: `_exec_save` in mindspore/train/serialization.py, 2.10.
"""

MOST = 16
"""Maximum findings of one kind per shard, so that a bad shard neither hides the others nor fills the memory.

A broken model of a thousand tensors on a thousand ranks has a million findings.
"""

_PICKLE = unknown(
    Code.UNSUPPORTED_FORMAT,
    "a pickle, as torch.save wrote it before 1.6: it calls no function that is known to run code, but its tensors "
    "were not checked",
    remedy="load it only if you trust its author, and save it again with a newer torch",
)


def observe_header(task: CheckTask, source: ByteSource) -> Observation:
    """Observe the header and the last bytes, without reading tensor data.

    Raises:
        OSError: The disk did not answer.
    """
    front = Front(source)
    header = read_header(front, named=task.named_format, facts=task.facts)
    records = _records(task, header, source)
    is_one = records is not None and header.format is FormatName.TORCH_ZIP
    pickled, pickle_bytes = _look_inside(records, source) if records is not None and is_one else ((), 0)
    own_findings = (*_findings(task, header, records), *pickled, *_against_record(task, header))
    findings = tuple(replace(finding, path=task.path) for finding in own_findings)
    broken = worst(findings) >= Severity.DAMAGE
    is_seen_in_part = header.format is FormatName.TORCH_ZIPS and not task.level.reads_content
    page = None if broken else header.last_page
    tail = b"" if page is None else front.read(page[0], page[1] - page[0])
    report = ShardReport(
        path=task.path,
        rank=task.rank,
        role=task.role,
        level=task.level,
        format=header.format,
        stamp=source.stamp,
        scalars=header.scalars,
        schema_hash=None if broken else header.schema_hash,
        tensors=None if broken or is_seen_in_part else _tensors(header, records),
        checksum_matched=False,
        bytes_read=ByteCount(header.bytes_read + len(tail) + (records.bytes_read if records else 0) + pickle_bytes),
        findings=findings,
        embedded_checksum=header.checksum is not None or (records is not None and records.verifiable),
        zero_tail=bool(tail) and not tail.strip(b"\0"),
        tail_hash=_hash(tail) if tail else None,
        metadata_hash=None if broken else metadata_hash(header),
    )
    return Observation(task=task, report=report, header=header, records=records)


def _records(task: CheckTask, header: Header, source: ByteSource) -> ZipDirectory | None:
    """Read the zip directory of a torch file, or of all archives in the file."""
    if worst(header.findings) >= Severity.DAMAGE:
        return None
    if header.format is FormatName.TORCH_ZIPS:
        from ckpttool.core.formats.torch.zips import read_zips

        return read_zips(source, thoroughly=task.level.reads_content)
    if header.format is not FormatName.TORCH_ZIP:
        return None
    from ckpttool.core.formats.torch.zip_directory import read_zip_directory

    return read_zip_directory(source)


def _look_inside(records: ZipDirectory, source: ByteSource) -> tuple[tuple[Finding, ...], int]:
    """Check the pickles of a torch file, and its compressed records."""
    from ckpttool.core.formats.torch.shard import look_at_pickles

    pickled, nbytes = look_at_pickles(source, records.entries)
    if not records.deflated:
        return pickled, nbytes
    from ckpttool.core.formats.torch.torchscript import look_at_code

    code, more = look_at_code(source, records.deflated)
    return (*pickled, *code), nbytes + more


def _findings(task: CheckTask, header: Header, records: ZipDirectory | None) -> tuple[Finding, ...]:
    if records is None:
        findings = (*header.findings, *misspelt(header))
        is_one = header.format is FormatName.TORCH_PICKLE and task.named_format in TORCH_FORMATS
        return (_PICKLE,) if is_one and worst(findings) < Severity.UNSAFE else findings
    return (*header.findings, *records.findings)


def _against_record(task: CheckTask, header: Header) -> Iterator[Finding]:
    """Compare the tensors with those that the save's own record assigns to the file."""
    if not task.facts.entries or header.schema_hash is None:
        return
    shapes = {entry.name: entry.shape for entry in header.entries}
    lacking = [name for name, _ in task.facts.entries if name not in shapes]
    if lacking:
        message = f"according to the save's own record it contains {_first(lacking)}, but it does not"
        yield damage(Code.ENTRIES_MISSING, message, tensor=lacking[0])
    differing = [
        (name, allowed)
        for name, allowed in task.facts.entries
        if allowed and shapes.get(name, allowed[0]) not in allowed
    ]
    if differing:
        name, allowed = differing[0]
        message = f"{_first([name for name, _ in differing])} does not have the shape in the save's own record"
        expected, actual = str(list(allowed[0])), str(list(shapes[name]))
        yield damage(Code.SCHEMA_DIFFERS, message, tensor=name, expected=expected, actual=actual)


def _first(names: list[str]) -> str:
    more = len(names) - 1
    return f"{quoted(names[0])} and {more} more" if more else quoted(names[0])


def contents_of_torch(observed: Observation, source: ByteSource) -> tuple[ZipDirectory | None, TorchContents]:
    """Return all records of a torch file, with its tensors and values.

    Raises:
        OSError: The disk did not answer.
    """
    from ckpttool.core.formats.torch.contents import torch_contents

    records = observed.records
    if observed.report.format is not FormatName.TORCH_ZIPS:
        return records, torch_contents(source, () if records is None else records.entries)
    from ckpttool.core.formats.torch.dcp import slice_names
    from ckpttool.core.formats.torch.zips import read_zips, zips_contents

    if not observed.task.level.reads_content:  # only the last slice was read
        records = read_zips(source, thoroughly=True)
    names = slice_names(open_storage(observed.task.root), observed.task.path)
    return records, zips_contents(source, () if records is None else records.entries, names)


def _tensors(header: Header, records: ZipDirectory | None) -> int | None:
    """Count the tensors; in a file that torch wrote, each is a record in a folder named `data`."""
    if records is not None:
        return sum("/data/" in record.name for record in records.entries)
    return None if header.schema_hash is None else len(header.entries)


def _hash(data: bytes) -> str:
    from xxhash import xxh3_64_hexdigest  # saves `--help` half a millisecond

    return xxh3_64_hexdigest(data)


def metadata_hash(header: Header) -> str | None:
    """Return the hash of the header text that siblings share, or None if there is no such text."""
    common = _common(header)
    return _text_hash(common) if common else None


def misspelt(header: Header) -> tuple[Finding, ...]:
    """Find words in a header's text that are one bit away from a word that MindSpore writes.

    No checksum covers this text, and no size depends on it. Other words are not damage, because any writer may add
    them. No writer intends `crc_nul`, however: this is a damaged checksum entry, and the file would seem to have no
    checksum.
    """
    return _one_bit_off(_common(header))


_Pairs = tuple[tuple[str, str], ...]


def _common(header: Header) -> _Pairs:
    """Return the header text without the checksum, whose value differs in every file and is never a misspelt word."""
    return tuple([pair for pair in header.metadata if pair[0] != CHECKSUM_KEY])


@lru_cache(maxsize=1)  # all ranks have the same text; few entries, because the text comes from files
def _text_hash(pairs: _Pairs) -> str:
    from xxhash import xxh3_128_hexdigest  # saves `--help` half a millisecond

    return xxh3_128_hexdigest("\0".join(chain.from_iterable(pairs)).encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1)
def _one_bit_off(pairs: _Pairs) -> tuple[Finding, ...]:
    findings = []
    for key, value in pairs:
        values = _VALUES.get(key)
        if values is None:
            close = next((value for value in _VALUES if _one_bit_apart(value, key)), None)
            corrected = key
        else:
            close = (
                None
                if value in values
                else next((candidate for candidate in values if _one_bit_apart(candidate, value)), None)
            )
            corrected = value
        if close is not None:
            message = f"The header's metadata has {quoted(corrected)}, which is one bit away from {quoted(close)}."
            findings.append(damage(Code.HEADER_INVALID, message, expected=close, actual=corrected))
    return tuple(findings)


def _one_bit_apart(first: str, second: str) -> bool:
    ours, theirs = first.encode(), second.encode("utf-8", "surrogatepass")
    if len(ours) != len(theirs):
        return False
    return sum((mine ^ its).bit_count() for mine, its in zip(ours, theirs, strict=True)) == 1


def capped(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the first findings of one kind, and a finding with the number of the remaining ones."""
    retained: list[Finding] = []
    more = 0
    for finding in findings:
        if len(retained) < MOST:
            retained.append(finding)
        else:
            more += 1
    if more:
        message = f"{more} more findings of this kind in this file"
        retained.append(replace(retained[-1], message=message, tensor=None, expected=None, actual=None))
    return tuple(retained)
