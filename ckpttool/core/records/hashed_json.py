"""JSON documents whose last key is a hash of everything before it, which detects truncation and edits.

The hash covers bytes, not values: a document is intact only if its bytes are unchanged. The hash detects accidents, not
attacks, because an attacker can compute a new hash. This module also reads the training scalars and file stamps that
all of ckpttool's own documents contain.
"""

from __future__ import annotations

import re

from ckpttool.core.domain.scalars import ScalarValues
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.formats.strict_json import JsonObject, as_float, as_int, get_int, get_object, get_optional_int

_TAIL = re.compile(rb',\n  "hash": "xxh3-128:([0-9a-f]{32})"\n\}\n')
_TAIL_BYTES = len(',\n  "hash": "xxh3-128:"\n}\n') + 32


def closed(members: str) -> bytes:
    """Return the document with its hash, for an object with at least one member.

    Args:
        members: The object in ASCII, from its `{` to its last member, without the final `}`.
    """
    body = members.encode("ascii")
    return body + f',\n  "hash": "xxh3-128:{_hash(body)}"\n}}\n'.encode("ascii")


def is_intact(document: bytes) -> bool:
    """Return whether a document is an unchanged result of `closed`."""
    tail = _TAIL.fullmatch(document[-_TAIL_BYTES:])
    return tail is not None and _hash(memoryview(document)[:-_TAIL_BYTES]) == tail[1].decode("ascii")


_ON_DISK = ("mtime_ns", "inode")
"""Encoding of a stamp's token for files on a disk; tokens from other storages are not stored."""


def is_on_disk(stamp: FileStamp) -> bool:
    """Return whether a stamp is that of a file on a local file system; other stamps cannot be encoded."""
    return len(stamp.token) == len(_ON_DISK)


def encoded_stamp(stamp: FileStamp) -> dict[str, object]:
    """Encode the stamp of a file on a local file system; `stamp_of` decodes it."""
    return {"size": stamp.size, **dict(zip(_ON_DISK, stamp.token, strict=True)), "ctime_ns": stamp.changed_ns}


def stamp_of(line: JsonObject) -> FileStamp:
    """Return the stamp in the member `stamp` of an object.

    Raises:
        ParseError: The stamp is missing, or has a different form.
    """
    stamp = get_object(line, "stamp")
    return FileStamp.on_disk(
        size=get_int(stamp, "size"),
        mtime_ns=get_int(stamp, "mtime_ns", minimum=None),
        inode=get_int(stamp, "inode"),
        ctime_ns=get_optional_int(stamp, "ctime_ns", minimum=None),
    )


def _hash(body: bytes | memoryview) -> str:
    from xxhash import xxh3_128_hexdigest  # saves `--help` half a millisecond

    return xxh3_128_hexdigest(body)


def scalars_of(record: JsonObject, *, where: str) -> ScalarValues:
    """Return the scalars in an object, without null values.

    Raises:
        ParseError: A scalar is not a number, or is negative.
    """
    return tuple(
        (name, as_float(value, where=where, key=name))
        if isinstance(value, float)
        else (name, as_int(value, where=where, key=name))
        for name, value in sorted(record.items())
        if value is not None
    )
