"""Steps made short, for the tests of the policies."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step

NAN = float("nan")
INF = float("inf")


def rows(norms: Iterable[float | None], *, first: int = 1) -> tuple[StepMetrics, ...]:
    """Return neighbouring steps with these norms."""
    return tuple(StepMetrics(step=Step(step), global_norm=norm) for step, norm in enumerate(norms, first))


def row(step: int, norm: float | None, *, overflow: bool | None = None, skipped: bool | None = None) -> StepMetrics:
    """Return one step."""
    return StepMetrics(step=Step(step), global_norm=norm, overflow=overflow, skipped=skipped)


# BLOOM-176B, public chronicle: the printed iterations around its spike.
BLOOM = (
    (31214, 0.242),
    (31215, 0.947),
    (31216, 2.390),
    (31217, 15.886),
    (31218, 145.119),
    (31219, 960.351),
    (31220, 353.201),
    (31221, 379.330),
    (31222, 650.246),
    (31250, 0.267),
    (31251, 0.205),
)


def bloom() -> tuple[StepMetrics, ...]:
    """Return BLOOM's rows."""
    return tuple(row(step, norm) for step, norm in BLOOM)
