"""Health of the model: a checkpoint that was not measured does not count as healthy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass


class Health(str, Enum):
    """Known health of a checkpoint."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


_WORST_LAST = (Health.HEALTHY, Health.UNKNOWN, Health.UNHEALTHY)


def worst_health(healths: Iterable[Health]) -> Health:
    """Return the worst health in several records of one checkpoint; unknown is worse than healthy."""
    return max(healths, key=_WORST_LAST.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRecord:
    """Entry of `health_ckpts.json` for one file name; the worst entry if the name occurs several times."""

    name: str
    """File name in the record: the name of rank 0's file, with its run suffix."""
    health: Health
    entries: int
    """Number of entries with this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthBook:
    """The contents of a health file."""

    path: str | None
    """Path of the file, for display; None if there is no health file."""
    records: tuple[HealthRecord, ...]
    findings: tuple[Finding, ...] = ()
    over_limit: bool = False
    """Whether the file is larger than any real health file, so that at most its beginning was read."""
