"""Judge the last resume that the training logs show, in a separate thread, so that no poll waits for a long log."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import STDIN
from ckpttool.core.storage import open_storage
from ckpttool.core.verbs.scanning import Tree
from ckpttool.postflight.model.answers import LastResume
from ckpttool.postflight.read.logs import names_in
from ckpttool.postflight.verbs import last_resume, start_logs
from ckpttool.trainers.registry import log_reader
from ckpttool.watch.model import WatchQuestion

REST = 50
"""Multiple of the duration of a read until the next one. Logs are read for at most 2 % of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsRead:
    """The result of reading the logs."""

    resume: LastResume | None = None
    """None if the logs have not changed, or show no resume."""
    error: BaseException | None = None
    """The exception that stopped the read."""


class ResumeReading:
    """Reads of the logs of a watched tree, one at a time."""

    def __init__(self, question: WatchQuestion, done: Callable[[LogsRead], None]) -> None:
        """Store the question.

        Args:
            question: The logs, and the accepted faults.
            done: Called once per read, in the thread that read.
        """
        self._question = question
        self._done = done
        self._names: tuple[str, ...] = ()
        self._stamps: tuple[object, ...] = ()
        self._rests_until = 0.0
        self.is_running = False

    def begin(self, tree: Tree, *, is_idle: bool) -> None:
        """Read the logs, unless a read is in progress or the last one was recent.

        Args:
            tree: The tree.
            is_idle: Whether to list no folder, and check only the known logs.
        """
        is_elsewhere = not tree.machines.is_here and not self._question.logs.patterns
        if self.is_running or is_elsewhere or time.monotonic() < self._rests_until:
            return
        if STDIN in self._question.logs.patterns:  # it can be read only once
            return
        if is_idle and not self._names:
            return
        self.is_running = True
        threading.Thread(target=self._run, args=(tree,), kwargs={"is_idle": is_idle}, daemon=True).start()

    def _run(self, tree: Tree, *, is_idle: bool) -> None:
        began = time.monotonic()
        try:
            read = LogsRead(resume=self._read(tree, is_idle=is_idle))
        except BaseException as error:  # noqa: BLE001  the watch raises it: a thread cannot
            read = LogsRead(error=error)
        self._rests_until = time.monotonic() + REST * (time.monotonic() - began)
        self._done(read)

    def _read(self, tree: Tree, *, is_idle: bool) -> LastResume | None:
        logs = self._question.logs
        if not is_idle:
            self._names = names_in(log_reader(logs.columns), logs.patterns, tree.storage.root, start_logs(tree))
        stamps = tuple(map(_stamp, self._names))
        if stamps == self._stamps:
            return None
        resume = last_resume(tree, logs, self._question.allowed)
        self._stamps = stamps
        return resume


def _stamp(name: str) -> tuple[object, ...]:
    """Return a value that changes if a log is written."""
    folder, file = os.path.split(name)
    stamp = open_storage(folder or os.curdir).stamp(file)
    return name, stamp.size, stamp.token
