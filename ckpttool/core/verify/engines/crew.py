"""Threads that stay for the next piece of work: a tree has thousands of checkpoints, and each is a run of an engine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

TICK_SECONDS = 0.5
"""How often engines look at deadlines."""

IDLE_SECONDS = 1.0
"""After so long without work a thread ends by itself: nobody has to say that a session is over."""


class Crew:
    """Starts work at once, in a thread that has none or in a new one."""

    def __init__(self) -> None:
        """Begin with no thread."""
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        """Threads that wait, and for which no work was put yet."""
        self._lock = threading.Lock()

    def begin(self, work: Callable[[], None]) -> None:
        """Have work done, beside all other work; it must not raise."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._work.put(work)
                return
        # A daemon: a thread that the disk never answers must not keep the process alive.
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            work()
            work = self._next()

    def _next(self) -> Callable[[], None] | None:
        """Wait for more work; None where none comes."""
        with self._lock:
            self._idle += 1
        try:
            return self._work.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            pass
        with self._lock:
            try:  # it may have been put a moment ago, for this thread
                return self._work.get_nowait()
            except queue.Empty:
                self._idle -= 1
                return None
