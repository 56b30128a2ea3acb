"""The trainer's own records that name its latest save."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The contents of such a record."""

    path: str
    """Relative to the root."""
    rank: Rank | None = None
    """The rank of the record; None if all ranks share the record."""
    name: str | None = None
    """The file or folder that the record names, as written; None if the record names nothing."""
    target: str | None = None
    """The path of that file or folder, relative to the root. The path comes from a file, so it is only compared with
    paths, never followed."""
    content: bytes | None = None
    """The trainer's own form of the same record."""
    trouble: str | None = None
    """Why the record does not name a file or folder."""
    unknown: bool = False
    """Whether the record exists but could not be read, so that it may name something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerText:
    """The contents of such a record after saving a certain checkpoint."""

    name: str
    """File or folder that the record names."""
    content: bytes
    """The complete file."""
    like: str | None = None
    """A record, relative to the root, whose mode a missing record gets, so that the same users can read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerFix:
    """A record that must be changed to name a different checkpoint."""

    path: str
    """Relative to the root."""
    trouble: str
    """The current problem, for people."""
    text: PointerText
    """The right contents."""
