"""How much of an answer people want to see, and in which machines they think. Programs get all of it in any case."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a table is to show."""

    ranks_per_node: int | None = None
    """Ranks in a row that one machine runs, from 0 on: then damage is told by machines, too. None: not known."""
    everything: bool = False
    """Every finding, every rejected checkpoint and every rank, instead of the first ones and a number."""


USUAL = View()
