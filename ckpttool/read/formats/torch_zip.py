"""A zip archive, as `torch.save` writes it since 1.6: recognised; its pickles are read by opcode, never unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.domain.finding import Finding
from ckpttool.domain.shard import FormatName
from ckpttool.read.formats.base import MAX_FINDINGS, Header, failed_header, quoted, unsupported
from ckpttool.read.formats.torch_pickle import pickle_findings
from ckpttool.read.storage import ByteSource

if TYPE_CHECKING:
    from ckpttool.read.zip_directory import ZipEntry

_MAGIC = b"PK\x03\x04"
"""Signature of a zip's first local file header."""


class TorchZip:
    """What `torch.save` writes."""

    name = FormatName.TORCH_ZIP

    def recognise(self, head: bytes) -> bool:
        """Tell by a zip's first bytes."""
        return head.startswith(_MAGIC)

    def header(self, source: ByteSource, head: bytes) -> Header:  # noqa: ARG002  (the seam hands it to every format)
        """Say that it is a torch file under a MindSpore name; nothing of it is read."""
        return failed_header(self.name, unsupported("a zip archive as torch.save writes it"), bytes_read=len(head))


def look_at_pickles(source: ByteSource, records: Sequence[ZipEntry]) -> tuple[tuple[Finding, ...], int]:
    """Find what the pickles of an archive would run.

    Args:
        source: The open file.
        records: All records of it.

    Returns:
        The findings, without a path, and how many bytes were read.

    Raises:
        OSError: The disk did not answer.
    """
    # torch asks for `data.pkl`, and its reader of zip files does not tell capitals.
    pickles = [record for record in records if record.name.lower().endswith(".pkl")]
    if not pickles:
        return (), 0
    from ckpttool.read.formats.pickle_scan import PickleReader  # costs a start a millisecond

    reader = PickleReader(source)
    findings: list[Finding] = []
    for record in pickles:
        names = reader.names(record.begin, record.end)
        findings += pickle_findings(quoted(record.name), names)
        if names.over_limit or len(findings) == MAX_FINDINGS:
            break
    return tuple(findings), reader.bytes_read
