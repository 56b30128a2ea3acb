"""`latest`: the tag of the last save. Rank 0 writes this file before it knows whether the other ranks have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.records import leads_out
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.deepspeed_tags import LATEST

if TYPE_CHECKING:
    from ckpttool.core.domain.pointer import Pointer

_LIMIT = 1024


def latest_tag(storage: Storage, record: str = LATEST) -> str:
    """Return the tag in `latest`, as DeepSpeed reads it; empty if the file has no tag.

    The text is untrusted, so it is only compared with names, and never used as a path.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file cannot be read.
    """
    return storage.small_file(record, limit=_LIMIT).decode("utf-8", "surrogateescape").strip()


def latest_pointer(storage: Storage, record: str = LATEST) -> Pointer:
    """Read `latest`, or `latest_universal`."""
    from ckpttool.core.domain.pointer import Pointer  # not needed for a scan

    try:
        tag = latest_tag(storage, record)
    except FileNotFoundError:
        return Pointer(path=record, trouble="is missing")
    except OSError as error:
        return Pointer(path=record, trouble=f"cannot be read ({error.strerror or error})", unknown=True)
    if not tag:
        return Pointer(path=record, trouble="is empty")
    if "/" in tag or leads_out(tag):
        return Pointer(path=record, trouble="does not name a folder beside it")
    return Pointer(path=record, name=tag, target=tag, content=tag_bytes(tag))


def tag_bytes(tag: str) -> bytes:
    """Encode the tag, without a newline."""
    return tag.encode("utf-8", "surrogateescape")
