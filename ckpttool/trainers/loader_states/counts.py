"""Counts in loader states, without trust in their size."""

from __future__ import annotations

from ckpttool.core.domain.units import STEP_DIGITS
from ckpttool.core.formats.torch.plain import integer_at


def count_at(state: object, *path: str | int) -> int | None:
    """Return the count at a path of keys; None if there is no integer, or an implausible one."""
    value = integer_at(state, *path)
    return value if value is not None and 0 <= value < 10**STEP_DIGITS else None
