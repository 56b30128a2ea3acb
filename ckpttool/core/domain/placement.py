"""Machine on which each rank starts, and the location of the rank's files."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadByAll:
    """Files of a save that every machine reads when it starts, as paths relative to the tree."""

    surely: tuple[str, ...] = ()
    """Files that every machine certainly reads; if one is absent, the machine stops or begins at step 0.

    Files that the save lacks do not matter.
    """
    perhaps: tuple[str, ...] = ()
    """Files of which every machine reads some; no record shows which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ranks that will start on one machine."""

    ranks: tuple[Rank, ...]
    """Ranks in ascending order."""
    host: str
