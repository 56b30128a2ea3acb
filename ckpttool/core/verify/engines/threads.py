"""Content checks on all cores, since hashing, numpy and reading release the interpreter's lock."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.verify.check import guarded, hung
from ckpttool.core.verify.engines.waiting import TICK_SECONDS, Crew
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.report import check_and_judge

_GIB = 1 << 30


class ThreadEngine:
    """An engine with one worker per core and one file per worker, biggest first.

    Two threads that read a file in two places slow a disk down, so a worker stays with its file until there is no
    unstarted file. A read that hangs (a dead network disk) does not hang the run: its file is reported as unreadable
    after `timeout`, and its thread is abandoned, because nothing can interrupt it.
    """

    def __init__(
        self, *, jobs: int, timeout: float, work: Callable[[CheckTask], Observation] = check_and_judge
    ) -> None:
        """Store the number of workers, and the seconds per GiB after which a task counts as hung."""
        self._jobs = jobs
        self._timeout = timeout
        self._work = work
        self._crew = Crew()

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation per task, in the order of completion."""
        board = _Board(tasks)
        workers = [_Worker(board, self._work, self._crew) for _ in range(min(self._jobs, len(tasks)))]
        remaining = len(tasks)
        try:
            while remaining:
                for observed in self._next(board, workers):
                    remaining -= 1
                    yield observed
        finally:  # also if the rest is not needed, so that no worker starts another task
            board.close()

    def _next(self, board: _Board, workers: list[_Worker]) -> Sequence[Observation]:
        """Wait for the next observation, and return several if a file is abandoned."""
        while True:
            try:
                return (board.done.get(timeout=TICK_SECONDS),)
            except queue.Empty:
                pass
            for index, worker in enumerate(workers):
                task = worker.abandon_after(self._timeout)
                if task is not None:
                    workers[index] = _Worker(board, self._work, self._crew)
                    # A file that hung once would hang again for each of its other parts.
                    parts = (task, *board.withdraw(task.path))
                    return tuple(hung(part, patience(part, self._timeout)) for part in parts)


def patience(task: CheckTask, timeout: float) -> float:
    """Return the time limit of a task in seconds: the timeout, or the timeout per GiB for larger tasks."""
    return timeout * max(1.0, task.cost / _GIB)


class _Board:
    """The remaining tasks, by file, and the finished tasks."""

    def __init__(self, tasks: Sequence[CheckTask]) -> None:
        files: dict[str, deque[CheckTask]] = defaultdict(deque)
        for task in tasks:
            files[task.path].append(task)
        by_cost = sorted(files.values(), key=lambda parts: -sum(part.cost for part in parts))
        self._unbegun = deque(by_cost)
        self._begun: dict[str, deque[CheckTask]] = {}
        self._lock = threading.Lock()
        self.done: queue.SimpleQueue[Observation] = queue.SimpleQueue()

    def take(self, mine: deque[CheckTask]) -> tuple[CheckTask, deque[CheckTask]] | None:
        """Return the next task: from this worker's file, an unstarted file, or the end of another worker's file."""
        with self._lock:
            if mine:
                return mine.popleft(), mine
            if self._unbegun:
                parts = self._unbegun.popleft()
                task = parts.popleft()
                if parts:
                    self._begun[task.path] = parts
                return task, parts
            longest = max(self._begun.values(), key=len, default=None)
            if not longest:
                return None
            return longest.pop(), mine

    def withdraw(self, path: str) -> tuple[CheckTask, ...]:
        """Remove the unstarted tasks of a file from the board."""
        with self._lock:
            parts = self._begun.get(path, deque())
            withdrawn = tuple(parts)
            parts.clear()
            return withdrawn

    def close(self) -> None:
        """Remove all unstarted tasks."""
        with self._lock:
            self._unbegun.clear()
            for parts in self._begun.values():
                parts.clear()


class _Worker:
    """A thread that runs tasks until no task remains, or until it is abandoned."""

    def __init__(self, board: _Board, work: Callable[[CheckTask], Observation], crew: Crew) -> None:
        self._board = board
        self._work = work
        self._lock = threading.Lock()
        self._task: CheckTask | None = None
        self._since = 0.0
        self._given_up = False
        crew.begin(self._run)

    def _run(self) -> None:
        mine: deque[CheckTask] = deque()
        while (taken := self._board.take(mine)) is not None:
            task, mine = taken
            with self._lock:
                self._task, self._since = task, time.monotonic()
            observed = guarded(task, self._work)
            with self._lock:
                if self._given_up:
                    return
                self._task = None
            self._board.done.put(observed)

    def abandon_after(self, timeout: float) -> CheckTask | None:
        """Abandon the thread and return its task if the task hangs; otherwise return None."""
        with self._lock:
            if self._task is None or time.monotonic() - self._since <= patience(self._task, timeout):
                return None
            self._given_up = True
            return self._task
