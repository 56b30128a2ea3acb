"""Progress of a check, written by the readers and read by the display."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.verify.observation import Observation


class Work(Protocol):
    """A function that runs one task, and reports the number of bytes after each block of content."""

    def __call__(self, task: CheckTask, *, passed: Callable[[int], None] | None = None) -> Observation:
        """Check one shard, or a part of it."""
        ...


class Meter:
    """A counter of the bytes and shards of all checks that use it."""

    def __init__(self) -> None:
        self.bytes_done = 0
        """Bytes that no longer need to be read, with a fixed cost for a shard's header."""
        self.shards_done = 0
        """Shards with a report."""
        self.shards_kept = 0
        """Number of these shards that the ledger stores, so that the next run continues after them."""
        self._planned_bytes = 0
        self._planned_shards = 0
        self._expected: tuple[int, int] = (0, 0)
        self._lock = threading.Lock()

    @property
    def bytes_total(self) -> int:
        """Known number of bytes to be read; `resolve` cannot know in advance how many checkpoints it will read."""
        return max(self._planned_bytes, self._expected[0])

    @property
    def shards_total(self) -> int:
        """Known number of shards to be checked."""
        return max(self._planned_shards, self._expected[1])

    def expect(self, *, nbytes: int, shards: int) -> None:
        """Set the total amount, if it is known in advance."""
        self._expected = (nbytes, shards)

    def begin(self, shards: int) -> None:
        """Add the shards of the next checkpoint."""
        self._planned_shards += shards

    def plan(self, tasks: Iterable[CheckTask]) -> None:
        """Add the next tasks."""
        self._planned_bytes += sum(task.cost for task in tasks)

    def remembered(self, tasks: Iterable[CheckTask]) -> None:
        """Count tasks that need not run because the ledger has the results."""
        self._expected = (self._expected[0] - sum(task.cost for task in tasks), self._expected[1])

    def reported(self, *, kept: bool) -> None:
        """Count a shard that now has a report, and whether the ledger stores it."""
        self.shards_done += 1
        self.shards_kept += kept

    def advance(self, nbytes: int) -> None:
        """Count bytes that no task reads."""
        with self._lock:
            self.bytes_done += nbytes

    def done(self, task: CheckTask) -> None:
        """Count a task that was run elsewhere."""
        with self._lock:
            self.bytes_done += task.cost

    def counting(self, work: Work) -> Callable[[CheckTask], Observation]:
        """Return a function that runs and counts tasks: each task adds exactly its cost as it proceeds."""

        def counted(task: CheckTask) -> Observation:
            done = 0

            def passed(nbytes: int) -> None:
                nonlocal done
                more = min(nbytes, task.cost - done)
                done += more
                with self._lock:
                    self.bytes_done += more

            try:
                return work(task, passed=passed)
            finally:
                passed(task.cost)

        return counted


class Pace(Meter):
    """A meter that also limits the read rate."""

    def __init__(self, rate: int | None) -> None:
        """Store the maximum average rate in bytes per second, measured from now; None for no limit."""
        super().__init__()
        self._rate = rate
        self._began = time.monotonic()
        self._read = 0

    def counting(self, work: Work) -> Callable[[CheckTask], Observation]:
        """Return a function that runs tasks and waits if the read rate is too high."""

        def paced(task: CheckTask) -> Observation:
            return work(task, passed=self._passed)

        return paced

    def _passed(self, nbytes: int) -> None:
        self._read += nbytes
        if self._rate:
            ahead = self._read / self._rate - (time.monotonic() - self._began)
            if ahead > 0:
                time.sleep(ahead)
