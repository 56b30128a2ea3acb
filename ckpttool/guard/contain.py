"""Containment of the guard's own errors.

The training continues after an error in the guard. A part that fails too often is switched off.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from time import perf_counter
from typing import TypeVar

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.guard.model.guarding import Emit

T = TypeVar("T")

MOST_FAILURES = 3
"""Number of failures of a part, over all ranks, after which all ranks switch it off."""

MOST_SHARE = 0.01
MOST_SHARE_WITH_FEATURES = 0.03
"""Share of a step's time that the guard may use."""

UNNOTICED = 0.001
"""Seconds that the guard may always use, however short a step is."""

SLOW_STEPS = 100
"""Number of consecutive steps above that share."""

_TRACEBACK_CHARACTERS = 2000
"""Characters of the first error of a part; a line of an event file has little more space."""


class Part(IntEnum):
    """The parts of the guard that can fail separately.

    Ranks exchange these numbers. The part with the largest number is handled first.
    """

    NORM = 1
    POLICY = 2
    DROP = 3
    MEMORY = 4
    BUFFERS = 5
    CAPTURE = 6
    FEATURES = 7
    CHECKSUM = 8
    EVENTS = 9
    STATE = 10
    EMBEDDING = 11

    @property
    def is_essential(self) -> bool:
        """Whether the guard cannot decide without this part. If such a part fails, the whole guard is switched off."""
        return self in {Part.NORM, Part.POLICY, Part.DROP}


class Containment:
    """Runner for the parts of the guard that catches their exceptions and measures their time."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self._failures: Counter[Part] = Counter()  # summed over all ranks, so the same on each
        self._off: set[Part] = set()
        self._reported: set[Part] = set()
        self._pending: set[Part] = set()
        self.is_off = False
        """Whether the whole guard is switched off."""
        self.step = Step(0)
        """The step to name in events."""
        self.seconds = 0.0
        """Seconds that the parts took since this was last set to 0."""

    def run(self, part: Part, call: Callable[[], T], *, waits: bool = False, always: bool = False) -> T | None:
        """Run a part, and return its result, or None if it fails or is switched off.

        Args:
            part: The part to count failures for, and to switch off.
            call: The function to run.
            waits: Whether it waits for the device. That time does not count as the guard's.
            always: Call it even if the part is switched off, because a rare call may succeed the next time.
        """
        if not always and not self.is_on(part):
            return None
        start = perf_counter()
        try:
            return call()
        except Exception as error:  # noqa: BLE001  no error here may end the training
            self._failed(part, error)
            return None
        finally:
            self.seconds += 0.0 if waits else perf_counter() - start

    def switch_off(self, part: Part, reason: str) -> None:
        """Switch a part off on this rank alone. The part must not involve other ranks."""
        if self.is_on(part):
            self._switch_off(part, reason)

    def is_on(self, part: Part) -> bool:
        """Return whether a part still runs, on this rank and therefore on all ranks."""
        return part not in self._off and not self.is_off

    def next_failed(self) -> int:
        """Return the number of a part that failed here and was not yet reported to the other ranks, or 0."""
        if not self._pending:
            return 0
        part = max(self._pending)
        self._pending.remove(part)
        return part

    def agreed(self, number: int) -> None:
        """Count a failure that all ranks know about. Zero means that no part failed."""
        if not number:
            return
        part = Part(number)
        self._failures[part] += 1
        if self._failures[part] == MOST_FAILURES:
            self._switch_off(part, f"it failed {MOST_FAILURES} times")

    def _switch_off(self, part: Part, reason: str) -> None:
        self._off.add(part)
        self.is_off |= part.is_essential
        name, is_essential = part.name.lower(), part.is_essential
        self.emit(GuardEventKind.GUARD_OFF, step=self.step, part=name, whole_guard=is_essential, message=reason)

    def _failed(self, part: Part, error: Exception) -> None:
        if part in self._pending:  # one micro-batch per step is enough
            return
        self._pending.add(part)
        first = part not in self._reported
        self._reported.add(part)
        trace = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARACTERS:]
        values = {"traceback": trace} if first else {}
        self.emit(GuardEventKind.GUARD_ERROR, step=self.step, part=part.name.lower(), error=one_line(error), **values)


class Pace:
    """Measurement of the guard's share of each step, to detect a share that is too large for too long."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._too_slow = 0

    def share(self, own_seconds: float) -> float | None:
        """Return the guard's share of the time since the last call, or None at the first call."""
        now = perf_counter()
        last, self._last = self._last, now
        return None if last is None else own_seconds / max(now - last, own_seconds, 1e-9)

    def is_too_slow(self, own_seconds: float, share: float, most: float) -> bool:
        """Return whether the share exceeded the limit in a hundred consecutive steps, at most once per hundred."""
        self._too_slow = self._too_slow + 1 if share > most and own_seconds > UNNOTICED else 0
        if self._too_slow < SLOW_STEPS:
            return False
        self._too_slow = 0
        return True


def one_line(error: Exception) -> str:
    """Return an exception's class and the beginning of its message on one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
