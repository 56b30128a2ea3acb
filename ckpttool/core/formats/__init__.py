"""Shard file formats, recognized by content and never by suffix."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from ckpttool.core.domain.finding import Code, Finding, damage
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import NO_FACTS, ShardFacts
from ckpttool.core.domain.shard import TORCH_FORMATS, FormatName
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.formats.base import (
    ENCRYPTED,
    LENGTH_BYTES,
    RECORD,
    ZIP_MAGIC,
    Header,
    ShardFormat,
    unread_header,
    unsupported,
)
from ckpttool.core.formats.front import HEAD_BYTES, Front
from ckpttool.core.storage.base import ByteSource


class Known(NamedTuple):
    """A format, with the check for its first bytes; its reader is imported on first use."""

    name: FormatName
    recognise: Callable[[bytes], bool]
    """Function that returns whether a file's first bytes have this format; it never uses the file's name."""
    reader: Callable[[], ShardFormat]


def _is_zip(head: bytes) -> bool:
    return head.startswith(ZIP_MAGIC)


def _torch_zip() -> ShardFormat:
    from ckpttool.core.formats.torch.shard import TorchZip

    return TorchZip()


def _is_mindspore(head: bytes) -> bool:
    """Check the first field of a file, or the signature of an encrypted file.

    A safetensors header of a certain length begins with the same byte, but has zeros in place of the tensor's name.
    """
    return head.startswith(ENCRYPTED) or (head[:1] == bytes([RECORD]) and any(head[4:8]))


def _mindspore() -> ShardFormat:
    from ckpttool.core.formats.mindspore.shard import MindSporeCkpt

    return MindSporeCkpt()


def _is_safetensors(head: bytes) -> bool:
    """Check for the brace after the length, with which a header must begin."""
    return head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def _safetensors() -> ShardFormat:
    from ckpttool.core.formats.safetensors.shard import Safetensors

    return Safetensors()


def _is_pickle(head: bytes) -> bool:
    """Check for the opcode PROTO with an existing protocol, which torch's legacy files also begin with."""
    return head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}


def _torch_pickle() -> ShardFormat:
    from ckpttool.core.formats.torch.shard import TorchPickle

    return TorchPickle()


FORMATS = (
    Known(FormatName.TORCH_ZIP, _is_zip, _torch_zip),
    Known(FormatName.MINDSPORE_CKPT, _is_mindspore, _mindspore),
    Known(FormatName.SAFETENSORS, _is_safetensors, _safetensors),
    Known(FormatName.TORCH_PICKLE, _is_pickle, _torch_pickle),
)
"""All formats, those with the most reliable magic number first.

Pickle comes last, because its magic number has only two bytes, and a safetensors file with a header of 640 bytes begins
with the same two.
"""

_SMALLEST = 10
"""Size in bytes of the smallest file of any format: a safetensors file with the header `{}`."""

_MAY_CHANGE_PLACES = {FormatName.SAFETENSORS: ".safetensors", FormatName.MINDSPORE_CKPT: ".ckpt"}


def read_header(source: ByteSource, *, named: FormatName, facts: ShardFacts = NO_FACTS) -> Header:
    """Read the header of a shard in any format.

    Args:
        source: The open shard.
        named: The format according to the file's name. It only affects the message if the content has a different
            format.
        facts: The layout's facts about the shard, including the scalars to read.

    Returns:
        The header, with findings if the file is damaged, refused or unknown. The content never causes an exception.

    Raises:
        OSError: The disk did not answer.
    """
    report_seen = getattr(source, "shown", None)
    if report_seen is not None:
        return shown_header(report_seen, named, facts)
    front = source if isinstance(source, Front) else Front(source)
    size = source.stamp.size
    head = front.head()
    if not head:
        return unread_header(named, damage(Code.SHARD_EMPTY, "The file is empty."), bytes_read=0)
    if named is FormatName.OCDBT:  # unchanged values, even zeros, because the store has the position of each
        return unread_header(named, bytes_read=len(head))
    if not head.strip(b"\0"):
        return _zeroed(source, named, head)
    for shard_format in FORMATS:
        if shard_format.recognise(head):
            return _under_its_name(shard_format.reader().header(front, head, facts), named)
    from ckpttool.core.formats.torch.shard import unsafe_pickle

    # The oldest pickles have no magic number.
    return unsafe_pickle(source, head, hidden=False) or unread_header(
        named, _unrecognised(head, size), bytes_read=len(head)
    )


def shown_header(report: ShardReport, named: FormatName, facts: ShardFacts) -> Header:
    """Return the header of a file that was read elsewhere, with its scalars but without its tensors.

    Raises:
        OSError: The request exceeds the data that was read earlier.
    """
    if not facts.scalars:
        raise OSError(errno.ENODATA, "only its scalars were checked on its machine")
    requested = {scalar.name for scalar in facts.scalars}
    scalars = tuple(pair for pair in report.scalars if pair[0] in requested)
    return replace(unread_header(report.format or named, bytes_read=0), scalars=scalars, schema_hash=report.schema_hash)


def _zeroed(source: ByteSource, named: FormatName, head: bytes) -> Header:
    """Report a zero-filled header, and whether the file's end is also zero; the middle is not checked."""
    size = source.stamp.size
    tail = source.read(max(len(head), size - HEAD_BYTES), HEAD_BYTES)
    tail_is_zero = not tail.strip(b"\0")
    where = f"and last {HEAD_BYTES} bytes are" if tail_is_zero and size > HEAD_BYTES else "bytes are"
    finding = damage(
        Code.SHARD_ZEROED,
        f"The first {len(head)} {where} zero; the file has {size}.",
        expected="a header",
        actual="zeros",
    )
    return unread_header(named, finding, bytes_read=len(head) + len(tail))


def _unrecognised(head: bytes, size: int) -> Finding:
    first = head[:_SMALLEST].hex(" ")
    if size < _SMALLEST:
        return damage(
            Code.SHARD_TRUNCATED,
            f"The file has {size} bytes ({first}); no shard has fewer than {_SMALLEST}.",
            expected=f">= {_SMALLEST}",
            actual=str(size),
        )
    zeros = len(head) - len(head.lstrip(b"\0"))
    if zeros >= _SMALLEST:
        return damage(
            Code.SHARD_ZEROED,
            f"The first {zeros} bytes are zero; the file has {size}.",
            expected="a header",
            actual="zeros",
        )
    return damage(
        Code.HEADER_INVALID,
        f"The file is not a shard of any known format: it begins with {first}.",
        actual=first,
    )


def _under_its_name(header: Header, named: FormatName) -> Header:
    """Add a finding to the header if the file's name belongs to a different format."""
    if header.format in TORCH_FORMATS:
        if header.format is FormatName.TORCH_ZIP and named is FormatName.TORCH_ZIPS:
            return replace(header, format=named)  # both begin with the same bytes
        foreign = named not in TORCH_FORMATS and not header.findings
        return replace(header, findings=(unsupported(header.format, named),)) if foreign else header
    if header.format == named or header.format not in _MAY_CHANGE_PLACES or named not in _MAY_CHANGE_PLACES:
        return header
    is_a, called = _MAY_CHANGE_PLACES[header.format], _MAY_CHANGE_PLACES[named]
    finding = damage(
        Code.NAME_DISAGREES,
        f"The file is named {called}, but its content is that of a {is_a} file, so MindSpore fails to load it.",
        expected=named.value,
        actual=header.format.value,
    )
    return replace(header, findings=(finding, *header.findings))
