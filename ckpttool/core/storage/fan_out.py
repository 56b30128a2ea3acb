"""Run many small waits in parallel, but only if there is something to wait for.

On a warm local disk, threads gain nothing; on a network file system with 2 ms per call, they are 12 to 40 times as
fast. So work begins in this thread and moves to a pool as soon as the kernel shows that this thread keeps waiting.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

PROBE_ITEMS = 8
"""Number of items done before the first measurement: enough to decide, and not noticeable at 2 ms per call."""

WORKERS = 32
"""More than 64 threads are slower again; 32 spare the metadata servers."""


STORE_WORKERS = 64
"""An object store takes 20 ms for a request that a disk answers immediately; more workers do not help."""


def map_waiting(work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    """Apply `work` to every item and yield the results in the order of the items.

    If this thread has to wait for the disk, the remaining items are given to `WORKERS` threads.
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
    """Detects whether this thread keeps waiting: a voluntary context switch means that it waited for the disk."""

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
    """Count how often this thread has slept so far; on macOS, which counts per process, how often all threads have."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw
