"""Saves that are one file of `torch.save`: whether the end of the file is missing, and whether two are the same."""

from __future__ import annotations

from ckpttool.core.domain.finding import Finding, Severity, helped
from ckpttool.core.domain.frozen import replace
from ckpttool.core.storage.base import ByteSource, NotRegularError, Storage

_ZIP = b"PK\x03\x04"


def cut(source: ByteSource, path: str) -> tuple[Finding, ...]:
    """Report an archive without a valid end.

    If the end is valid, the data before it are not checked.

    Raises:
        OSError: The disk could not be read.
    """
    from ckpttool.core.formats.torch.zip_directory import read_zip_directory
    from ckpttool.core.formats.torch.zip_end import archive_begin

    if archive_begin(source, source.stamp.size)[0] == 0 or not source.read(0, len(_ZIP)).startswith(_ZIP):
        return ()
    findings = (finding for finding in read_zip_directory(source).findings if finding.severity >= Severity.DAMAGE)
    return tuple(helped(replace(finding, path=path)) for finding in findings)


def identity(storage: Storage, name: str) -> object:
    """Return the name, length and CRC32 of each record of a file; without CRC32s, the file's own name.

    `torch.save` gives the archive's folder the name of the file, so that part is left out.
    """
    from ckpttool.core.formats.torch.zip_directory import read_zip_directory

    try:
        with storage.open(name) as source:
            directory = read_zip_directory(source)
    except OSError:
        return name
    if not directory.verifiable:
        return name
    return tuple(
        (record.name.partition("/")[2], record.end - record.begin, record.crc32) for record in directory.entries
    )


def is_torn(storage: Storage, name: str) -> bool | None:
    """Return whether a file's end is missing; None if it cannot be read. Folders are checked elsewhere."""
    try:
        with storage.open(name) as source:
            return bool(cut(source, name))
    except NotRegularError:
        return False
    except OSError:
        return None
