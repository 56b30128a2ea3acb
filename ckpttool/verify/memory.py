"""What was verified before, asked and told while a session runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ckpttool.domain.verdict import CheckTask, ShardReport
from ckpttool.storage.base import Storage
from ckpttool.verify.ledger import load, lookup, save

if TYPE_CHECKING:
    from ckpttool.domain.manifest import ShardSeal

SAVE_SECONDS = 30.0
"""The whole ledger is written each time: for each checkpoint of hundreds it would cost more than the reading."""


class Memory:
    """One tree's ledger, read once; what is new goes back to the disk now and then, and at the end."""

    def __init__(
        self, storage: Storage, place: str | None, *, max_age: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Take the tree, its ledger, and the seconds that an earlier verification counts."""
        self._storage = storage
        self._place = place
        self._max_age = max_age
        self._clock = clock
        self._ledger = load(place)
        self._began = clock()
        self._reports: list[ShardReport] = []
        self._seals: dict[str, ShardSeal] = {}
        self._saved_at = clock()

    def recall(self, task: CheckTask) -> ShardReport | None:
        """Return the report on a file that was verified before and has not changed since; None to read it."""
        if task.path not in self._ledger.shards:
            return None
        try:
            stamp = self._storage.stamp(task.path)
        except OSError:  # the check itself will say what is wrong with it
            return None
        return lookup(self._ledger, task, stamp, now=self._clock(), max_age=self._max_age)

    def remember(self, reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> None:
        """Keep what was verified; what turned out bad is forgotten. `save` brings the last of it to the disk."""
        for report in reports:
            self._reports.append(report)
            if report.path in seals:
                self._seals[report.path] = seals[report.path]
        if self._clock() - self._saved_at > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what is new."""
        save(self._place, self._reports, seals=self._seals, began=self._began)
        self._reports, self._seals = [], {}
        self._saved_at = self._clock()
