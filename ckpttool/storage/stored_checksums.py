"""The checksums that an object store keeps of objects: asked for one by one, and not a byte of an object is read."""

from __future__ import annotations

import base64
import binascii
from typing import Protocol
from urllib.parse import urlsplit

from ckpttool.domain.shard import FileStamp
from ckpttool.domain.stored import CrcName, StoredChecksum
from ckpttool.errors import UsageError


class StoredChecksums(Protocol):
    """Who tells what a store keeps of the objects below a root."""

    @property
    def address(self) -> str:
        """Where the store is asked, without anything secret."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether its maker documents that it compares what it is told with what it gets, or computes it itself."""
        ...

    def of(self, path: str, stamp: FileStamp) -> StoredChecksum:
        """Ask about one object, relative to the root, as it was listed.

        Raises:
            ReplacedError: It is another one by now.
            WithheldError: The store does not know us, or does not let us ask.
            OSError: It is not there, or the store does not answer.
        """
        ...


def assert_keeps(root: str) -> None:
    """See that below a root lies what a store keeps checksums of.

    Raises:
        UsageError: It is no store, or one whose checksums say no more than its sender did.
    """
    scheme = root.partition("://")[0]
    if scheme in {"s3", "gs"}:
        return
    why = "--level stored asks a store (s3://, gs://) for the checksums that it keeps, and here is none"
    if scheme == "az":
        why = "--level stored has nothing to ask Azure for: the MD5 that it keeps is the sender's word"
    raise UsageError(f"{root}: {why}; --level checksum reads every byte")


def address_of(url: str) -> str:
    """Return the part of an address that may be shown, and by which stores are told apart."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}{f':{parts.port}' if parts.port else ''}"


def whole_crc(crc: CrcName, text: str) -> int | None:
    """Return a checksum in a store's spelling, base64 of its bytes; None where it is not of one whole object."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return int.from_bytes(data, "big") if len(data) == crc.nbytes else None


def spelled_crc(crc: CrcName, value: int) -> str:
    """Spell a checksum as stores do."""
    return base64.b64encode(value.to_bytes(crc.nbytes, "big")).decode("ascii")
