"""What the opcodes of a pickle tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckpttool.formats.torch.pickle_ahead import StorageId
from ckpttool.formats.torch.pickle_names import Trust

MOST_NAMES = 1_000
"""Different names that are kept of each sort."""


@dataclass(slots=True)
class PickleNames:
    """What a pickle calls for. Names are kept as Python 3 spells them: show them escaped."""

    runs: list[str] = field(default_factory=list)
    """Known to run code, or to reach what does."""
    hidden: bool = False
    """Also some that are put together while it is loaded."""
    unknown: list[str] = field(default_factory=list)
    broken: str | None = None
    """Why the first pickle cannot be read to its end; names before that are known."""
    over_limit: bool = False
    """There is more than anybody looks at; names in what was seen are known."""
    storages: dict[str, StorageId] = field(default_factory=dict, compare=False)
    """Those of tensors by their keys, as far as they are written plainly."""

    def take(self, verdict: Trust, name: str) -> None:
        """Keep a name that is not known to be harmless."""
        if verdict is Trust.KNOWN:
            return
        kept = self.runs if verdict is Trust.RUNS else self.unknown
        if len(kept) < MOST_NAMES and name not in kept:
            kept.append(name)
