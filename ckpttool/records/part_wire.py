"""A part as short lines of text, so that the output of any launcher carries it: what comes between does no harm.

`ckpttool-part RUN I/N KEY K/M BASE64 CRC32`: line K of M of part I of N. Launchers put a prefix before a line, mix the
lines of many processes, and tear long ones; logs hold lines twice. A line that came through says so itself by its CRC,
and KEY, the hash of what is joined, keeps a part from being joined of two.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import crc32
from collections.abc import Iterable, Iterator

from ckpttool.domain.frozen import dataclass
from ckpttool.domain.part import MOST_PART_BYTES, MOST_PARTS_BYTES
from ckpttool.errors import UnsafeError

LINE_BYTES = 256
"""Of every line, with its end: shorter ones are filled up with blanks. Launchers read what a process wrote in pieces
of 1,024 (srun) or 4,096 bytes (Open MPI), and another's may come between two: so each ends where a line does.
"""

MARK = b"ckpttool-part "
"""What each line of a part begins with, behind whatever a launcher puts before it."""
_HEAD = rb"ckpttool-part ([A-Za-z0-9._-]{1,64}) ([1-9][0-9]{0,5})/([1-9][0-9]{0,5}) "
_LINE = re.compile(
    _HEAD + rb"([0-9a-f]{16}) ([1-9][0-9]{0,5})/([1-9][0-9]{0,5}) ([A-Za-z0-9+/=]{1,480}) ([0-9a-f]{8})(?![0-9a-f])"
)
_BEGUN = re.compile(_HEAD)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartName:
    """Which part of which run."""

    run: str
    index: int
    """From 1."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What lines hold of parts."""

    parts: tuple[tuple[PartName, bytes], ...]
    """Each that came whole, by name; several of one name where its process ran several times."""
    torn: tuple[PartName, ...]
    """Those of which something came, and nothing whole."""


def lines_of(part: bytes, name: PartName) -> Iterator[bytes]:
    """Yield the lines of a part, each to be written by one call, for what is written by two may be torn.

    Args:
        part: Its bytes as they would stand in a file.
        name: `run` of 1 to 64 letters, digits, dots, dashes and underscores.
    """
    from zlib import compress

    packed = compress(part, 9)
    if max(len(part), len(packed)) > MOST_PART_BYTES:
        raise UnsafeError(f"a part of {max(len(part), len(packed))} bytes: at most {MOST_PART_BYTES} are read back")
    text = b64encode(packed)
    head = f"{MARK.decode()}{name.run} {name.index}/{name.count} {_key(packed)}".encode("ascii")
    # As if each number had six digits, which is more than as many lines as a part can have.
    room = LINE_BYTES - len(head) - len(" 000000/000000 ") - len(" 01234567\n")
    pieces = [text[at : at + room] for at in range(0, len(text), room)]
    for number, piece in enumerate(pieces, 1):
        line = b"%s %d/%d %s" % (head, number, len(pieces), piece)
        yield (b"%s %08x" % (line, crc32(line))).ljust(LINE_BYTES - 1) + b"\n"


def parts_in(lines: Iterable[bytes]) -> Received:
    """Find parts in lines of any text, behind any prefix, in any order, mixed, twice.

    Raises:
        UnsafeError: There is more of them than a run can have.
    """
    found: dict[tuple[PartName, bytes], dict[int, bytes]] = {}
    begun: set[PartName] = set()
    size = 0
    for line in lines:
        if MARK not in line:
            continue
        begun.update(_name(match) for match in _BEGUN.finditer(line))
        for match in _LINE.finditer(line):
            if int(match[8], 16) != crc32(match[0][: -len(" 01234567")]):
                continue
            number, count = int(match[5]), int(match[6])
            pieces = found.setdefault((_name(match), b"%s %d" % (match[4], count)), {})
            if number <= count and number not in pieces:
                pieces[number] = match[7]
                size += len(match[7])
                if size > MOST_PARTS_BYTES:
                    raise UnsafeError(f"more than {MOST_PARTS_BYTES} bytes of parts: give fewer of them at once")
    whole = [(name, part) for (name, key), pieces in found.items() if (part := _joined(key, pieces)) is not None]
    whole.sort()
    return Received(parts=tuple(whole), torn=tuple(sorted(begun - {name for name, _ in whole})))


def _name(match: re.Match[bytes]) -> PartName:
    return PartName(run=match[1].decode("ascii"), index=int(match[2]), count=int(match[3]))


def _joined(key: bytes, pieces: dict[int, bytes]) -> bytes | None:
    from zlib import decompressobj
    from zlib import error as NotDeflatedError  # noqa: N812  its name says nothing

    told, count = key.split(b" ")
    if len(pieces) != int(count):
        return None
    try:
        packed = b64decode(b"".join(pieces[number] for number in range(1, len(pieces) + 1)), validate=True)
        unpacking = decompressobj()
        part = unpacking.decompress(packed, MOST_PART_BYTES)
    except (ValueError, NotDeflatedError):
        return None
    return part if _key(packed) == told.decode() and unpacking.eof and not unpacking.unused_data else None


def _key(packed: bytes) -> str:
    from xxhash import xxh3_64_hexdigest

    return xxh3_64_hexdigest(packed)
