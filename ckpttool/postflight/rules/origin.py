"""Which of two runs wrote a save that both passed."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.core.domain.metrics import StepMetrics, local_time_of
from ckpttool.core.domain.units import Step


def is_of_second_run(
    before: Sequence[StepMetrics], after: Sequence[StepMetrics], save: Step, earlier: Step, seconds: float
) -> bool:
    """Return whether the second run wrote a save, by the time since an earlier save; False also if it is unknown.

    Logs name no time zone, so only time differences are compared.

    Args:
        before: The rows of the first run.
        after: The rows of the second run.
        save: The step of the save.
        earlier: The step of a save of the first run before it.
        seconds: The time between both saves, by their files.
    """
    start, first, second = _logged(before, earlier), _logged(before, save), _logged(after, save)
    if start is None or first is None or second is None:
        return False
    return abs(seconds - (second - start)) < abs(seconds - (first - start))


def _logged(rows: Sequence[StepMetrics], step: Step) -> float | None:
    """Return when a step was logged, or the last logged step before it."""
    row = next((row for row in reversed(rows) if row.step <= step), None)
    return None if row is None else local_time_of(row.time)
