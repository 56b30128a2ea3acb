"""Headers, sizes, the training scalars and the last bytes: what a shard says about itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckpttool.domain.finding import Code, Finding, Severity, worst
from ckpttool.domain.shard import FormatName
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import CheckTask, ShardReport
from ckpttool.formats import read_header
from ckpttool.formats.base import Header
from ckpttool.formats.front import Front
from ckpttool.formats.torch.zip import look_at_pickles
from ckpttool.storage.base import ByteSource
from ckpttool.verify.checks.metadata import metadata_hash, misspelt
from ckpttool.verify.observation import Observation

if TYPE_CHECKING:
    from ckpttool.formats.torch.zip_directory import ZipDirectory

_PICKLE = Finding(
    code=Code.UNSUPPORTED_FORMAT,
    severity=Severity.UNKNOWN,
    message="a pickle, as torch.save wrote it before 1.6: it calls for nothing that is known to run code, but its "
    "tensors are not looked at",
    remedy="load it where you trust it, and save it again with a newer torch",
)


def observe_header(task: CheckTask, source: ByteSource) -> Observation:
    """Report what the header and the last bytes show, without reading tensor data.

    Raises:
        OSError: The disk did not answer.
    """
    front = Front(source)
    header = read_header(front, named=task.named_format)
    records = _records(header, source)
    pickled, pickle_bytes = _look_inside(records, source) if records else ((), 0)
    own = (*_findings(task, header, records), *pickled)
    findings = tuple(replace(finding, path=task.path) for finding in own)
    broken = worst(findings) >= Severity.DAMAGE
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
        tensors=None if broken else _tensors(header, records),
        checksum_matched=False,
        bytes_read=ByteCount(header.bytes_read + len(tail) + (records.bytes_read if records else 0) + pickle_bytes),
        findings=findings,
        embedded_checksum=header.checksum is not None or (records is not None and records.verifiable),
        zero_tail=bool(tail) and not tail.strip(b"\0"),
        tail_hash=_hash(tail) if tail else None,
        metadata_hash=None if broken else metadata_hash(header),
    )
    return Observation(task=task, report=report, header=header, records=records)


def _records(header: Header, source: ByteSource) -> ZipDirectory | None:
    """Read the directory of a file that torch wrote."""
    if header.format is not FormatName.TORCH_ZIP or worst(header.findings) >= Severity.DAMAGE:
        return None
    from ckpttool.formats.torch.zip_directory import read_zip_directory

    return read_zip_directory(source)


def _look_inside(records: ZipDirectory, source: ByteSource) -> tuple[tuple[Finding, ...], int]:
    """Look at the pickles of a file that torch wrote, and at what is deflated in it."""
    pickled, nbytes = look_at_pickles(source, records.entries)
    if not records.deflated:
        return pickled, nbytes
    from ckpttool.formats.torch.torchscript import look_at_code

    code, more = look_at_code(source, records.deflated)
    return (*pickled, *code), nbytes + more


def _findings(task: CheckTask, header: Header, records: ZipDirectory | None) -> tuple[Finding, ...]:
    """Collect what is wrong with the file by itself."""
    if records is None:
        own = (*header.findings, *misspelt(header))
        is_one = header.format is task.named_format is FormatName.TORCH_PICKLE
        return (_PICKLE,) if is_one and worst(own) < Severity.UNSAFE else own
    # That torch wrote it is worth a word only where something else was expected.
    asked_for = task.named_format is FormatName.TORCH_ZIP
    own = tuple(one for one in header.findings if not (asked_for and one.code is Code.UNSUPPORTED_FORMAT))
    return (*own, *records.findings)


def _tensors(header: Header, records: ZipDirectory | None) -> int | None:
    """Count the tensors; in a file that torch wrote, each is a record in a folder named `data`."""
    if records is not None:
        return sum("/data/" in record.name for record in records.entries)
    return None if header.schema_hash is None else len(header.entries)


def _hash(data: bytes) -> str:
    from xxhash import xxh3_64_hexdigest  # half a millisecond that `--help` need not pay

    return xxh3_64_hexdigest(data)
