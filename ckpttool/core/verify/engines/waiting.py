"""An engine for header checks, which are slow only on a slow disk, and an engine that reads each file once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.storage import is_local
from ckpttool.core.storage.fan_out import PROBE_ITEMS, STORE_WORKERS, WORKERS, Probe
from ckpttool.core.verify.check import check, guarded, hung
from ckpttool.core.verify.observation import Observation

if TYPE_CHECKING:
    from ckpttool.core.verify.observation import Engine, Observation


TIMEOUT_SECONDS = 600.0
"""Seconds for a header of a few KiB; a disk that needs longer does not respond."""


TICK_SECONDS = 0.5
"""Seconds between two checks of the deadlines."""

IDLE_SECONDS = 1.0
"""Seconds after which an idle thread ends, so that a session need not be closed."""


class Crew:
    """A pool of threads that starts work immediately, in an idle thread or in a new one."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        """Number of waiting threads without assigned work."""
        self._lock = threading.Lock()

    def begin(self, work: Callable[[], None]) -> None:
        """Run work in parallel; the work must not raise an exception."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._work.put(work)
                return
        # A daemon, because a thread that waits for the disk forever must not keep the process alive.
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            work()
            work = self._next()

    def _next(self) -> Callable[[], None] | None:
        """Wait for more work; return None if no work arrives."""
        with self._lock:
            self._idle += 1
        try:
            return self._work.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            pass
        with self._lock:
            try:  # work for this thread may have arrived just now
                return self._work.get_nowait()
            except queue.Empty:
                self._idle -= 1
                return None


class WaitingEngine:
    """An engine with one thread while the disk responds quickly, and many otherwise. A store always counts as slow.

    A disk that never responds does not hang the run: after `timeout` the task is reported as unreadable, its thread
    is abandoned, and another thread continues with the rest.
    """

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS, work: Callable[[CheckTask], Observation] = check) -> None:
        """Store the seconds after which a task counts as hung."""
        self._timeout = timeout
        self._work = work
        self._crew = Crew()

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation per task in the order of the tasks, once all tasks are finished."""
        if not tasks:
            return
        run = _Run(tasks, self._work, self._crew)
        for _ in range(1 if is_local(tasks[0].root) else min(STORE_WORKERS, len(tasks))):
            run.hire()
        while not run.wait(TICK_SECONDS):
            run.replace_hung(self._timeout)
        yield from run.observations()


class _Run:
    """Threads that run tasks from one list, each taking the next unstarted task."""

    def __init__(self, tasks: Sequence[CheckTask], work: Callable[[CheckTask], Observation], crew: Crew) -> None:
        self._crew = crew
        self._tasks = tasks
        self._work = work
        self._observations: list[Observation | None] = [None] * len(tasks)
        self._lock = threading.Lock()
        self._next = 0
        self._missing = len(tasks)
        self._all_there = threading.Event()
        self._at_work: dict[int, float] = {}
        """Index of each running task -> its start time."""
        self._hired = 0

    def hire(self) -> None:
        """Start one more thread."""
        self._hired += 1
        self._crew.begin(self._run)

    def wait(self, seconds: float) -> bool:
        """Wait for at most this many seconds, and return whether all observations are complete."""
        return self._all_there.wait(seconds)

    def observations(self) -> list[Observation]:
        return [observed for observed in self._observations if observed is not None]

    def _run(self) -> None:
        done, probe = 0, Probe()
        while (index := self._begin()) is not None:
            self._finish(index, guarded(self._tasks[index], self._work))
            done += 1
            if done % PROBE_ITEMS == 0 and self._hired == 1 and probe.has_waited_for(PROBE_ITEMS):
                for _ in range(min(WORKERS - 1, len(self._tasks) - self._next)):
                    self.hire()

    def _begin(self) -> int | None:
        with self._lock:
            if self._next >= len(self._tasks):
                return None
            index, self._next = self._next, self._next + 1
            self._at_work[index] = time.monotonic()
            return index

    def _finish(self, index: int, observed: Observation) -> None:
        with self._lock:
            if self._at_work.pop(index, None) is None:  # the thread was abandoned
                return
            self._observations[index] = observed
            self._missing -= 1
            if not self._missing:
                self._all_there.set()

    def replace_hung(self, timeout: float) -> None:
        """Report tasks that take too long, and start a thread to replace each hung thread."""
        now = time.monotonic()
        with self._lock:
            late = [index for index, start in self._at_work.items() if now - start > timeout]
        for index in late:
            self._finish(index, hung(self._tasks[index], timeout))
            self.hire()


class SavedResults:
    """Observations of earlier reads, stored while `takes` is true."""

    def __init__(self) -> None:
        self.takes = True
        self.seen: dict[CheckTask, Observation] = {}


class OnceEngine:
    """An engine that reads only files that have not been read yet, or have changed since the last read."""

    def __init__(
        self,
        engine: Engine,
        results: SavedResults,
        *,
        stamp: Callable[[str], FileStamp],
        done: Callable[[CheckTask], None] = lambda _: None,
    ) -> None:
        """Store the engine that reads, and the earlier results.

        Args:
            engine: The engine that reads the remaining shards.
            results: The results shared by all engines.
            stamp: Returns the current stamp of a path.
            done: Called with each task that needs no read.
        """
        self._engine, self._kept, self._stamp, self._done = engine, results, stamp, done

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation per task, known results first."""
        remaining = []
        for task in tasks:
            observation = self._kept.seen.get(task)
            if observation is None or not self._is_same(observation):
                remaining.append(task)
            else:
                self._done(task)
                yield observation
        for observed in self._engine.run(remaining) if remaining else ():
            if self._kept.takes:
                self._kept.seen[observed.task] = observed
            yield observed

    def _is_same(self, observation: Observation) -> bool:
        try:
            return (
                observation.report.stamp is not None and self._stamp(observation.task.path) == observation.report.stamp
            )
        except OSError:
            return False
