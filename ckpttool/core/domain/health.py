"""Health of the model, with three answers, because "not measured" is not "healthy"."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass


class Health(str, Enum):
    """The health of a checkpoint, as far as it is known."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


_WORST_LAST = (Health.HEALTHY, Health.UNKNOWN, Health.UNHEALTHY)


def worst_health(healths: Iterable[Health]) -> Health:
    """Return the worst of several health records of one checkpoint; unknown is worse than healthy."""
    return max(healths, key=_WORST_LAST.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRecord:
    """The entry of `health_ckpts.json` for one file name; the worst entry if the name occurs more than once."""

    name: str
    """File name as recorded: the name of rank 0's file, with its run suffix."""
    health: Health
    entries: int
    """How often the name occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthBook:
    """The contents of a health file."""

    path: str | None
    """The path for display; None if there is no health file."""
    records: tuple[HealthRecord, ...]
    findings: tuple[Finding, ...] = ()
    over_limit: bool = False
    """Whether the file is larger than any real health file, so that only its beginning was read, or nothing at all."""
