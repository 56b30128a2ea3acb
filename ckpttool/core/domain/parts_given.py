"""Of a tree that several machines looked at: which of them did."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsGiven:
    """Which looks an answer rests on."""

    given: int
    """Parts that were read."""
    of: int
    """Parts of the same run that there are."""
    missing: tuple[int, ...]
    """Numbers of those that were not given, from 1, or could not be read."""
    stale: tuple[int, ...]
    """Numbers of those that looked before the last of the files was written."""
    nodes: tuple[str, ...]
    """Hosts that looked, sorted."""
