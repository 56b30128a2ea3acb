"""The numbers of the steps: saves count completed steps, and some logs number the first step 0."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.postflight.read.logs import Runs
from ckpttool.postflight.rules.judge import interval_of


def counts_from_zero(runs: Runs, saves: Collection[Step], *, by_default: bool) -> bool:
    """Return whether the logs number the first step 0.

    A log that begins with step 1, or that shows step 10 first and every tenth step after it, does not. A log that
    begins with step 0 does if its trainer usually does, or if the resumed run begins with the number of a save.

    Args:
        runs: The rows of both runs.
        saves: The steps of the saves.
        by_default: Whether the trainer's logs usually do.
    """
    if not runs.before:
        return by_default
    first, interval = runs.before[0].step, interval_of(runs.before)
    if first == interval:
        return False
    return by_default or (first == 0 and bool(runs.after) and runs.after[0].step in saves)


def counted_from_one(runs: Runs) -> Runs:
    """Number the steps of both runs as the saves do."""
    return replace(
        runs,
        earlier=tuple(replace(start, rows=_later(start.rows)) for start in runs.earlier),
        before=_later(runs.before),
        after=_later(runs.after),
        is_renumbered=True,
    )


def _later(rows: Sequence[StepMetrics]) -> list[StepMetrics]:
    return [replace(row, step=Step(row.step + 1)) for row in rows]
