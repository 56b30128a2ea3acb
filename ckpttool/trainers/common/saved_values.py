"""Counters in a save's torch file, and a finding for a step that differs from the save's name."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.core.domain.finding import Code, Finding, suspect
from ckpttool.core.domain.units import STEP_DIGITS
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import integer_at, plain_values
from ckpttool.core.storage.base import Storage

_TRIED = 4
"""Number of files to try if the first one is damaged.

`verify` reports the problems in these files.
"""


def first_value(storage: Storage, paths: Iterable[str]) -> object:
    """Return the values in the first readable file; None if none of the files tried can be read."""
    for path, _ in zip(paths, range(_TRIED), strict=False):
        try:
            with storage.open(path) as source:
                return plain_values(source)
        except (OSError, BrokenPickleError):
            continue
    return None


def count_at(values: object, *path: str) -> int | None:
    """Return the count at a path of keys; None if the value is not a number, or is implausible."""
    value = integer_at(values, *path)
    return value if value is not None and 0 <= value < 10**STEP_DIGITS else None


def other_step(name: str, step: int) -> Finding:
    """Report a save whose name and content show different steps."""
    fact = f"is a save of step {step} according to its own record, unlike its name"
    message = f"{fact}: a copy, or files of two saves"
    remedy = "resume from another checkpoint, or rename it to the step of its content"
    return suspect(Code.STEP_DISAGREES, message, path=name, remedy=remedy, fact=fact)
