"""The machine on which each rank starts, and the location of the rank's files."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadByAll:
    """Files of a save that every machine reads at a start, by paths relative to the tree."""

    surely: tuple[str, ...] = ()
    """Every machine reads these files, and stops or begins at step 0 if one is absent. Files that the save lacks do not
    matter."""
    perhaps: tuple[str, ...] = ()
    """Every machine also reads some of these files; no record shows which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The ranks that will start on one machine."""

    ranks: tuple[Rank, ...]
    """In ascending order."""
    host: str
