"""torch's formats: a zip archive since 1.6, and a pickle before that. Pickles are read by opcode, never unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, damage, note, unsafe
from ckpttool.core.domain.scalars import ShardFacts
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats.base import MAX_FINDINGS, Header, over_limit, quoted, unread_header
from ckpttool.core.storage.base import ByteSource

if TYPE_CHECKING:
    from ckpttool.core.formats.torch.pickle_opcodes import PickleNames, StorageId
    from ckpttool.core.formats.torch.zip_directory import ZipEntry

_SHOWN = 3
"""Maximum number of names in a message."""

_OTHERS = frozenset({".data/extern_modules", ".data/python_version", "archive_format", "archive_version", "model.json"})
"""Records in archives that torch.load does not read."""
_ITEM_BYTES = {
    "ComplexDoubleStorage": 16,
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("CharStorage", "ByteStorage", "BoolStorage", "QInt8Storage", "QUInt8Storage"), 1),
    **dict.fromkeys(("UntypedStorage", "_UntypedStorage"), 1),
}
"""Bytes per element of each storage class; the length of other storages is not checked."""


class TorchPickle:
    """The legacy format of `torch.save`."""

    name = FormatName.TORCH_PICKLE

    def header(self, source: ByteSource, head: bytes, facts: ShardFacts) -> Header:  # noqa: ARG002  the format has no scalars
        """Check the pickles for names that run code; the rest of the file is not read."""
        return unsafe_pickle(source, head, hidden=True) or unread_header(self.name, bytes_read=len(head))


def unsafe_pickle(source: ByteSource, head: bytes, *, hidden: bool) -> Header | None:
    """Return a refusal if a file would run code when it is read as a pickle; otherwise None.

    Args:
        source: The open file.
        head: The first bytes, which have already been read.
        hidden: Whether to also refuse a computed name; do not set this for files that may not be pickles.
    """
    from ckpttool.core.formats.torch.pickle_scan import MOST_PICKLES, PickleReader  # saves other starts a millisecond

    reader = PickleReader(source)
    names = reader.names(0, source.stamp.size, pickles=MOST_PICKLES)
    if not names.runs and not (hidden and names.hidden):
        return None
    return unread_header(
        FormatName.TORCH_PICKLE, _unsafe("The pickle", names), bytes_read=len(head) + reader.bytes_read
    )


def pickle_findings(where: str, names: PickleNames) -> tuple[Finding, ...]:
    """Return the findings about a pickle that is essential for its file.

    Args:
        where: The pickle's name at the beginning of a sentence.
        names: The names in the pickle.
    """
    if names.runs or names.hidden:
        return (_unsafe(where, names),)
    if names.over_limit:
        return (over_limit(f"{where} is longer than ckpttool reads, so the code that it would run is unknown."),)
    if names.broken is not None:
        return (damage(Code.HEADER_INVALID, f"{where} is not a complete pickle: {names.broken}; torch.load fails."),)
    if names.unknown:
        message = (
            f"{where} names {_listed(names.unknown)}, which torch.load without weights_only would import and run; "
            f"ckpttool does not know its effect."
        )
        return (note(Code.UNSAFE_PICKLE, message),)
    return ()


def _unsafe(where: str, names: PickleNames) -> Finding:
    called = _listed(names.runs) if names.runs else "an object whose name is computed only during loading"
    return unsafe(
        Code.UNSAFE_PICKLE,
        f"{where} names {called}: torch.load without weights_only would run it.",
        remedy="do not load it, and find out who wrote it",
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(quoted, names[:_SHOWN])) + more


class TorchZip:
    """The zip format of `torch.save`."""

    name = FormatName.TORCH_ZIP

    def header(self, source: ByteSource, head: bytes, facts: ShardFacts) -> Header:  # noqa: ARG002  required by the interface
        """Return a header without tensors, because the directory is at the end of the file."""
        return unread_header(self.name, bytes_read=len(head))


def look_at_pickles(source: ByteSource, records: Sequence[ZipEntry]) -> tuple[tuple[Finding, ...], int]:
    """Check the pickles of an archive for names that run code, and for missing records.

    Args:
        source: The open file.
        records: All uncompressed records of the archive; empty if the directory is inconsistent.

    Returns:
        The findings, without a path, and the number of bytes read.

    Raises:
        OSError: The disk did not answer.
    """
    if not records:
        return (), 0
    root = records[0].name.partition("/")[0]
    # torch requests `data.pkl`, and its zip reader ignores case.
    pickles = [record for record in records if record.name.lower().endswith(".pkl")]
    main = f"{root}/data.pkl".lower()
    findings: list[Finding] = []
    if all(record.name.lower() != main for record in pickles) and not _is_another(root, records):
        name = f"{root}/data.pkl"
        message = (
            f"The archive has no {quoted(name)}, which lists the tensors: torch.load fails. A failed torch.save "
            f"leaves such a file."
        )
        findings.append(damage(Code.ENTRIES_MISSING, message, expected=name))
    if not pickles:
        return tuple(findings), 0
    from ckpttool.core.formats.torch.pickle_scan import PickleReader  # saves other starts a millisecond

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
    """Return whether an archive is from torch.package, torch.export or the oldest torch.jit.save.

    Such archives have no `data.pkl`.
    """
    marks = {f"{root}/{name}" for name in _OTHERS}
    return any(record.name in marks or record.name in _OTHERS for record in records)


def _missing(root: str, records: Iterable[ZipEntry], storages: Iterable[StorageId]) -> Iterator[Finding]:
    """Report tensors in the pickle whose records are missing or too short."""
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
        item_bytes = _ITEM_BYTES.get(storage.kind)
        # A storage of bytes may end within a number.
        if item_bytes is not None and size // item_bytes != storage.numel:
            yield damage(
                Code.HEADER_INVALID,
                f"The record {quoted(name)} has {size} bytes, but {quoted(f'{root}/data.pkl')} says {storage.numel} "
                f"numbers of {item_bytes} bytes ({storage.kind}).",
                expected=str(storage.numel * item_bytes),
                actual=str(size),
            )
