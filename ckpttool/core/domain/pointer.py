"""Records in which a trainer names its latest save."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Contents of a trainer's record that names a save."""

    path: str
    """Path of the record, relative to the root."""
    rank: Rank | None = None
    """Rank that the record belongs to; None if all ranks share the record."""
    name: str | None = None
    """Name of the file or folder, as written in the record; None if the record names nothing."""
    target: str | None = None
    """Path of that file or folder, relative to the root.

    The path is untrusted, so it is only compared with other paths and never opened.
    """
    content: bytes | None = None
    """The record in the trainer's own form."""
    trouble: str | None = None
    """Why the record does not name a file or folder; None if it does."""
    unknown: bool = False
    """Whether the record exists but could not be read, so that it may name something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerText:
    """Contents of a record after a save of a certain checkpoint."""

    name: str
    """Name of the file or folder that the record names."""
    content: bytes
    """Complete content of the record."""
    like: str | None = None
    """Path of a record, relative to the root, whose permissions are used for a missing record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerFix:
    """A change to a record so that it names a different checkpoint."""

    path: str
    """Path of the record, relative to the root."""
    trouble: str
    """Description of the current problem, for people."""
    text: PointerText
    """New content of the record."""
