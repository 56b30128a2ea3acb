"""Interface of shard file formats, which parse a header into tensor entries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from ckpttool.core.domain.finding import Code, Finding, unknown, unsafe
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import ScalarValues, ShardFacts
from ckpttool.core.domain.shard import FormatName, TensorEntry

if TYPE_CHECKING:
    from ckpttool.core.formats.front import Front


ZIP_MAGIC = b"PK\x03\x04"
"""Signature of a zip's first local file header."""

ENCRYPTED = (b"\xd8\x5e\x3a\x7f", b"\xd9\x5e\x3a\x7f", b"\xda\x5e\x3a\x7f")
"""The first bytes of an encrypted MindSpore file.

Source: crypto.h in MindSpore: AES-GCM, AES-CBC and SM4-CBC, as little-endian numbers.
"""

RECORD = 0x0A
"""First byte of every record of MindSpore: field 1, length-delimited."""

LENGTH_BYTES = 8
"""Size of the length field in front of a safetensors header."""

CHECKSUM_KEY = "crc_num"
"""Key of MindSpore's checksum in a safetensors header."""

LAST_PAGE_BYTES = 4096
"""Size of a file's last page in bytes.

A lost last page is the most common trace of a power failure: the file has the right size, but lacks the data.
"""

MAX_DIMS = 64
"""Maximum number of dimensions of a tensor, as in numpy; MindSpore's limit is lower."""

MAX_NAME_CHARS = 65_536
"""Maximum length of a tensor's name in characters; trainers write names of up to about 200."""

MAX_FINDINGS = 16
"""Maximum number of findings per shard, because a hostile file could cause any number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Contents of a shard's header, with a finding for every inconsistency."""

    format: FormatName
    """Format according to the content or, if that is unknown, according to the name."""
    entries: tuple[TensorEntry, ...]
    """Tensors in file order; if the header is damaged, those before the damage."""
    scalars: ScalarValues
    """Requested scalars that the file contains."""
    metadata: tuple[tuple[str, str], ...]
    """Free text pairs of the format (`__metadata__` of safetensors), sorted."""
    checksum: Checksum | None
    """Checksum stored in the file itself, which has not been recomputed yet."""
    findings: tuple[Finding, ...]
    """Findings without a path, because the caller adds the path."""
    bytes_read: int
    schema_hash: str | None
    """The result of `schema_hash`; None if the header could not be parsed to its end."""
    last_page: tuple[int, int] | None = None
    """First byte of the last tensor's data, and the byte after its end; None if there is no tensor data, or it is
    unknown."""


CRC_LIMIT = 2**32
"""Exclusive upper limit of a CRC-32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """A checksum that is stored in the file itself."""

    algorithm: str
    """Name of the algorithm.

    `crc32-file` covers all bytes before `end`; `crc32-entries` covers each tensor's name (UTF-8) and data, sorted by
    name.
    """
    value: int
    end: int
    """First byte that the checksum does not cover."""


class ShardFormat(Protocol):
    """Interface of a file format."""

    name: FormatName

    def header(self, source: Front, head: bytes, facts: ShardFacts) -> Header:
        """Read the header and the requested scalars, and nothing else.

        A damaged header does not raise an error; it is returned with findings.

        Raises:
            OSError: The disk did not answer.
        """
        ...


def schema_hash(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return a hash of a shard's tensors that is the same for equal tensors in every format.

    Args:
        rows: Name, dtype and shape (`8,4`; empty for a scalar) of every tensor, in any order.

    Returns:
        32 hex digits of xxh3-128. The hash detects accidental differences, but not deliberate ones.
    """
    from xxhash import xxh3_128_hexdigest  # saves `--help` half a millisecond

    return xxh3_128_hexdigest("\0".join(chain.from_iterable(sorted(rows))).encode())


def schema_rows(entries: Iterable[TensorEntry]) -> Iterable[tuple[str, str, str]]:
    """Convert entries to the rows that `schema_hash` takes."""
    return ((entry.name, entry.dtype.value, ",".join(map(str, entry.shape))) for entry in entries)


def last_page(entries: Iterable[TensorEntry]) -> tuple[int, int] | None:
    """Return the byte range of the last page of a file's tensor data, which may be shorter than a page."""
    spans = list(chain.from_iterable(entry.spans for entry in entries))
    if not spans:
        return None
    end = max(stop for _, stop in spans)
    return max(min(spans)[0], end - LAST_PAGE_BYTES), end


def unread_header(name: FormatName, *findings: Finding, bytes_read: int) -> Header:
    """Return the header of a file of which only the format is known."""
    return Header(
        format=name,
        entries=(),
        scalars=(),
        metadata=(),
        checksum=None,
        findings=findings,
        bytes_read=bytes_read,
        schema_hash=None,
    )


def over_limit(message: str) -> Finding:
    """Report that the rest of the file is not read, because it exceeds a limit."""
    return unsafe(Code.OVER_LIMIT, message)


def unsupported(is_a: FormatName, named: FormatName) -> Finding:
    """Report that a torch file has the name of a different format."""
    form = (
        "a pickle in the format of torch.save"
        if is_a is FormatName.TORCH_PICKLE
        else "a zip archive in the format of torch.save"
    )
    name = {
        FormatName.MINDSPORE_CKPT: ("a MindSpore shard", "under a name that MindSpore uses for its own files"),
        FormatName.SAFETENSORS: ("a safetensors file", "under the name of a safetensors file"),
    }
    expected, where = name[named]
    return unknown(
        Code.UNSUPPORTED_FORMAT,
        f"The file is {form}, {where}; ckpttool does not check its content.",
        expected=expected,
        actual=form,
    )


def quoted(name: str) -> str:
    """Return a name in quotation marks for a message, shortened if it is long."""
    return f"'{name}'" if len(name) <= _SHOWN_CHARS else f"'{name[:_SHOWN_CHARS]}…'"


_SHOWN_CHARS = 120
