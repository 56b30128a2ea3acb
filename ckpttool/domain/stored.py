"""What an object store keeps of an object beside its bytes, and whether it is known to have compared it with them."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.domain.frozen import dataclass


class CrcName(str, Enum):
    """The checksums of a whole object that stores keep and that two readings of a file can be compared by."""

    CRC32 = "crc32"
    CRC32C = "crc32c"
    CRC64NVME = "crc64nvme"

    @property
    def nbytes(self) -> int:
        """Bytes that one has."""
        return 8 if self is CrcName.CRC64NVME else 4

    def spelled(self, value: int) -> str:
        """Spell one in hexadecimal digits."""
        return f"{value:0{2 * self.nbytes}x}"


Crcs: TypeAlias = tuple[tuple[CrcName, int], ...]
"""Those that are known of all bytes of a file, each once, in the order of their names."""


def joined_crcs(first: Crcs, more: Crcs) -> Crcs:
    """Return what two tell of the same bytes."""
    return tuple(sorted({**dict(more), **dict(first)}.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChecksum:
    """What a store tells of an object without reading it."""

    crcs: Crcs
    """Of the whole object."""
    of_parts: tuple[str, ...]
    """Checksums of the parts in which it was uploaded, or of which nobody knows what they are of: only to be shown."""
    in_parts: bool
    """Whether it was uploaded in parts."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Claim:
    """A way to tell a store a checksum."""

    crc: CrcName
    in_parts: bool
    """Whether it is told when all parts are there, or with the object."""

    @property
    def word(self) -> str:
        """As a trial spells it: `crc32`, `crc32-in-parts`."""
        return f"{self.crc.value}-in-parts" if self.in_parts else self.crc.value


CLAIMS = tuple(Claim(crc=crc, in_parts=in_parts) for crc in CrcName for in_parts in (False, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrial:
    """What a store did when it was told wrong checksums."""

    address: str
    """Of the store: a bucket may be copied to another one."""
    server: str
    """What the store calls itself; empty where it does not say."""
    tried_at: str
    """UTC, `2025-01-31T23:59:59Z`."""
    refused: tuple[Claim, ...]
    taken: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Who keeps the objects of a tree, and what is known of it."""

    address: str
    """For people, and to tell one from another."""
    is_known: bool
    """Whether its maker documents that it compares every checksum that it is told with what it gets, or computes it."""
    trials: tuple[tuple[int, StoreTrial], ...] = ()
    """Of others: those at this address, each with when it was written down, in ns by the store's own clock."""

    def checked(self, claim: Claim, uploaded_ns: int | None) -> bool:
        """Tell whether it is known that it would have refused a wrong claim when an object was uploaded.

        A store that refuses today may have been another version then. So a trial counts for what came after it, and
        none where the store ever took what was wrong.
        """
        if self.is_known:
            return True
        if uploaded_ns is None or any(claim in trial.taken for _, trial in self.trials):
            return False
        return any(claim in trial.refused and at <= uploaded_ns for at, trial in self.trials)
