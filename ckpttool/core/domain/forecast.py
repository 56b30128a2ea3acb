"""The amount that a verification would read, before it reads anything."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointForecast:
    """The amount to read of one checkpoint."""

    name: str
    asked: bool
    """False: it would only be read for comparison with another checkpoint."""
    shards: int
    tasks: int
    """Units of work that can run in parallel: a big shard has several."""
    nbytes: ByteCount
    """Approximate; an estimate if only headers are read."""
    requests: int | None
    """Minimum number of requests to an object store; None on a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Answered):
    """The amount that `verify` would read. Its ledger may reduce this amount."""

    NOUN = "forecast"

    inventory: Inventory
    level: Level
    checkpoints: tuple[CheckpointForecast, ...]
    """Newest first."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if there is anything to read, otherwise 11."""
        return ExitCode.OK if self.checkpoints else ExitCode.NOTHING_TO_RESUME
