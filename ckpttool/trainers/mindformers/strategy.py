"""`strategy/ckpt_strategy_rank_N.ckpt`: one for each rank, so their number tells the world size. Never opened."""

from __future__ import annotations

import re

from ckpttool.storage.base import Storage

_STRATEGY = r"ckpt_strategy_rank_(?P<rank>[0-9]{1,9})\.(?:ckpt|json)"


def strategy_world(output: Storage) -> int | None:
    """Return the ranks that have a strategy file in an output folder, counted by the highest; None: there is none."""
    try:
        names = [entry.name for entry in output.entries("strategy")]
    except OSError:  # most trees have none, and what cannot be read is no evidence
        return None
    ranks = [int(match["rank"]) for name in names if (match := re.fullmatch(_STRATEGY, name))]
    return max(ranks, default=-1) + 1 or None
