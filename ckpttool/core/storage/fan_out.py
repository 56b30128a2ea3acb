"""Parallel execution of many short waits, if there is something to wait for.

On a warm local disk, threads gain nothing; on a network file system with 2 ms per call, they are 12 to 40 times as
fast. Therefore, work begins in the calling thread and moves to a pool when the kernel shows that this thread keeps
waiting.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

PROBE_ITEMS = 8
"""Number of items before the first measurement: enough to decide, and not noticeable at 2 ms per call."""

WORKERS = 32
"""Number of threads for a file system; more than 64 are slower again, and 32 spare the metadata servers."""


STORE_WORKERS = 64
"""Number of threads for an object store, which takes 20 ms for a request that a disk answers immediately.

More threads do not help.
"""


def map_waiting(work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    """Apply `work` to every item and yield the results in the order of the items.

    If this thread has to wait for the disk, `WORKERS` threads process the remaining items.
    """
    done: list[R] = []
    index = 0
    probe = Probe()
    while index < len(items):
        batch = items[index : index + PROBE_ITEMS]
        done += [work(item) for item in batch]
        index += len(batch)
        if probe.has_waited_for(len(batch)) and len(items) - index > 1:
            return chain(done, _in_threads(work, items[index:]))
    return done


class Probe:
    """Measurement of whether this thread keeps waiting, by its voluntary context switches."""

    def __init__(self) -> None:
        """Start counting."""
        self._before = sleeps()

    def has_waited_for(self, items: int) -> bool:
        """Return whether this thread slept at least once per item, for the items since the last call."""
        before, self._before = self._before, sleeps()
        return self._before - before >= items


def _in_threads(work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    from concurrent.futures import ThreadPoolExecutor  # takes 18 ms, which most calls do not need

    with ThreadPoolExecutor(min(WORKERS, len(items))) as pool:
        return list(pool.map(work, items))


def sleeps() -> int:
    """Return how often this thread has slept so far; on macOS, how often all threads of the process have."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw
