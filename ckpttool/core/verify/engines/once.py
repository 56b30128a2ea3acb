"""An engine in front of another: what was read for one question is not read again for the next about the same tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.verdict import CheckTask

if TYPE_CHECKING:
    from ckpttool.core.verify.observation import Engine, Observation


class Kept:
    """What was read while it takes."""

    def __init__(self) -> None:
        """Begin with nothing, and take what comes."""
        self.takes = True
        self.seen: dict[CheckTask, Observation] = {}


class OnceEngine:
    """Reads what was not read yet, or changed since."""

    def __init__(
        self,
        engine: Engine,
        kept: Kept,
        *,
        stamp: Callable[[str], FileStamp],
        done: Callable[[CheckTask], None] = lambda _: None,
    ) -> None:
        """Take who reads, and what was read.

        Args:
            engine: Reads the rest.
            kept: Shared by all that ask.
            stamp: Tells of a path what the file is now.
            done: Told of each task that needs no reading.
        """
        self._engine, self._kept, self._stamp, self._done = engine, kept, stamp, done

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation a task: those that are known first."""
        left = []
        for task in tasks:
            known = self._kept.seen.get(task)
            if known is None or not self._is_same(known):
                left.append(task)
            else:
                self._done(task)
                yield known
        for observed in self._engine.run(left) if left else ():
            if self._kept.takes:
                self._kept.seen[observed.task] = observed
            yield observed

    def _is_same(self, known: Observation) -> bool:
        try:
            return known.report.stamp is not None and self._stamp(known.task.path) == known.report.stamp
        except OSError:
            return False
