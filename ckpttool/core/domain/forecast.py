"""Estimate of the bytes that a verification would read."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointForecast:
    """Estimate of the bytes to read for one checkpoint."""

    name: str
    asked: bool
    """False if the checkpoint would only be read for comparison with another checkpoint."""
    shards: int
    tasks: int
    """Number of tasks that can run in parallel; a big shard has several."""
    nbytes: ByteCount
    """Number of bytes to read; an estimate if only headers are read."""
    requests: int | None
    """Minimum number of requests to an object store; None for a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Answered):
    """Estimate of the bytes that `verify` would read. Its ledger may reduce this amount."""

    NOUN = "forecast"

    inventory: Inventory
    level: Level
    checkpoints: tuple[CheckpointForecast, ...]
    """Newest first."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if there is anything to read, otherwise 11."""
        return ExitCode.OK if self.checkpoints else ExitCode.NOTHING_TO_RESUME
