"""A zip archive, as `torch.save` writes it since 1.6: recognised; its pickles are read by opcode, never unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ckpttool.domain.finding import Code, Finding, damage
from ckpttool.domain.scalars import ShardFacts
from ckpttool.domain.shard import FormatName
from ckpttool.formats.base import MAX_FINDINGS, Header, failed_header, quoted, unsupported
from ckpttool.formats.torch.bare_pickle import pickle_findings
from ckpttool.storage.base import ByteSource

if TYPE_CHECKING:
    from ckpttool.formats.torch.pickle_ahead import StorageId
    from ckpttool.formats.torch.zip_directory import ZipEntry

_MAGIC = b"PK\x03\x04"
"""Signature of a zip's first local file header."""
_OTHERS = frozenset({".data/extern_modules", ".data/python_version", "archive_format", "archive_version", "model.json"})
"""Records of archives that are for other than torch.load."""
_ITEM_BYTES = {
    "ComplexDoubleStorage": 16,
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("CharStorage", "ByteStorage", "BoolStorage", "QInt8Storage", "QUInt8Storage"), 1),
    **dict.fromkeys(("UntypedStorage", "_UntypedStorage"), 1),
}
"""Of one number of a storage; of all other kinds the length is not judged."""


class TorchZip:
    """What `torch.save` writes."""

    name = FormatName.TORCH_ZIP

    def recognise(self, head: bytes) -> bool:
        """Tell by a zip's first bytes."""
        return head.startswith(_MAGIC)

    def header(self, source: ByteSource, head: bytes, facts: ShardFacts) -> Header:  # noqa: ARG002  (the seam hands it to every format)
        """Say that it is a torch file under a MindSpore name; nothing of it is read."""
        return failed_header(self.name, unsupported("a zip archive as torch.save writes it"), bytes_read=len(head))


def look_at_pickles(source: ByteSource, records: Sequence[ZipEntry]) -> tuple[tuple[Finding, ...], int]:
    """Find what the pickles of an archive would run, and which records they name that are not there.

    Args:
        source: The open file.
        records: All records of it that are stored as they are; none where its directory does not hold together.

    Returns:
        The findings, without a path, and how many bytes were read.

    Raises:
        OSError: The disk did not answer.
    """
    if not records:
        return (), 0
    root = records[0].name.partition("/")[0]
    # torch asks for `data.pkl`, and its reader of zip files does not tell capitals.
    pickles = [record for record in records if record.name.lower().endswith(".pkl")]
    main = f"{root}/data.pkl".lower()
    findings: list[Finding] = []
    if all(record.name.lower() != main for record in pickles) and not _is_another(root, records):
        findings.append(_without_pickle(root))
    if not pickles:
        return tuple(findings), 0
    from ckpttool.formats.torch.pickle_scan import PickleReader  # costs a start a millisecond

    reader = PickleReader(source)
    for record in pickles:
        names = reader.names(record.begin, record.end)
        findings += pickle_findings(quoted(record.name), names)
        if record.name.lower() == main:
            findings += islice(_missing(root, records, names.storages.values()), MAX_FINDINGS)
        if names.over_limit or len(findings) >= MAX_FINDINGS:
            break
    return tuple(findings[:MAX_FINDINGS]), reader.bytes_read


def _is_another(root: str, records: Iterable[ZipEntry]) -> bool:
    """Tell what torch.package, torch.export and the oldest torch.jit.save wrote: there data.pkl need not be."""
    marks = {f"{root}/{name}" for name in _OTHERS}
    return any(record.name in marks or record.name in _OTHERS for record in records)


def _without_pickle(root: str) -> Finding:
    return damage(
        Code.ENTRIES_MISSING,
        f"The archive has no {quoted(f'{root}/data.pkl')}, which says what tensors there are: torch.load fails. "
        "A torch.save that failed leaves such a file.",
        expected=f"{root}/data.pkl",
    )


def _missing(root: str, records: Iterable[ZipEntry], storages: Iterable[StorageId]) -> Iterator[Finding]:
    """Compare the records of tensors with what the pickle says of them."""
    sizes = {record.name.lower(): record.end - record.begin for record in records}
    for storage in storages:
        name = f"{root}/data/{storage.key}"
        size = sizes.get(name.lower())
        if size is None:
            yield damage(
                Code.ENTRIES_MISSING,
                f"{quoted(f'{root}/data.pkl')} names the record {quoted(name)}, which the archive does not have: "
                "torch.load fails.",
                expected=name,
            )
            continue
        each = _ITEM_BYTES.get(storage.kind)
        # A storage of bytes may end within a number.
        if each is not None and size // each != storage.numel:
            yield damage(
                Code.HEADER_INVALID,
                f"The record {quoted(name)} has {size} bytes, but {quoted(f'{root}/data.pkl')} says {storage.numel} "
                f"numbers of {each} bytes ({storage.kind}).",
                expected=str(storage.numel * each),
                actual=str(size),
            )
