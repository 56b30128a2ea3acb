"""Whom events are told to: a file of this rank, and whoever else wants to know."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch

from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.guard.agree import Ranks
from ckpttool.guard.contain import MOST_FAILURES, one_line
from ckpttool.guard.files.events import EventFile
from ckpttool.guard.model.guarding import Emit

_ASKED = {
    "decided-too-late": "call guard.clip_ or guard.decide behind scaler.unscale_: else an overflow is seen "
    "only when the next step begins, and its gradients are gone",
    "scaler-not-given": "hand the loss scaler over, Guard(..., scaler=scaler): it was found when it first called the "
    "optimizer, and what overflowed before was taken for a part of that step",
    "no-micro-batch": "put guard.micro(batch) around forward and backward: else a dropped update leaves buffers "
    "changed, as running means are, a loss that is not finite is not seen, and nothing is kept that could be replayed",
}
"""What a training should do otherwise, by the alarm's name."""


class Telling:
    """Tells events, and never raises."""

    def __init__(
        self,
        output: str | os.PathLike[str] | None,
        sinks: Sequence[Emit],
        ranks: Ranks,
        about: Callable[[], tuple[Step, EventValue]],
    ) -> None:
        """Take where to tell.

        Args:
            output: The folder in which the file lies; None: there is none.
            sinks: Who else is told.
            ranks: Of which this is one; they may meet later.
            about: Returns the step after which the training goes on, and the policy in force.
        """
        self.sinks: list[Emit] = list(sinks)
        """One that raises three times is left out."""
        self._output = output
        self._ranks = ranks
        self._about = about
        self._file: EventFile | None = None
        self._failures: Counter[int] = Counter()
        self._asked: set[str] = set()

    def tell(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Tell an event to the file and all sinks. It is an `Emit`."""
        for sink in self._all():
            try:
                sink(kind, step=step, **values)
            except Exception as error:  # noqa: BLE001  whatever it is, the training must not end by it
                self._failed(sink, step, error)

    def tell_all(self, events: Iterable[GuardEvent]) -> None:
        """Tell several."""
        for event in events:
            self.tell(event.kind, step=event.step, **event.values)

    def ask(self, name: str, *, step: Step) -> None:
        """Ask by an alarm, once, for what the training should do otherwise."""
        if name not in self._asked:
            self._asked.add(name)
            self.tell(GuardEventKind.ALARM, step=step, name=name, message=_ASKED[name])

    def close(self) -> None:
        """Write what is left."""
        if self._file is not None:
            self._file.close()

    def _all(self) -> tuple[Emit, ...]:
        if self._output is not None:
            # Only when there is something to tell: by then all ranks have met.
            output, self._output = self._output, None
            try:
                self._file = self._begun(output)
            except Exception as error:  # noqa: BLE001  as above
                self.tell(GuardEventKind.GUARD_ERROR, step=self._about()[0], part="events", error=one_line(error))
        return (*self.sinks, *(() if self._file is None else (self._file.emit,)))

    def _begun(self, output: str | os.PathLike[str]) -> EventFile:
        step, policy = self._about()
        return EventFile(
            output,
            rank=self._ranks.own,
            world_size=self._ranks.world,
            step=step,
            policy=policy,
            versions={"python": sys.version.split()[0], "torch": torch.__version__},
        )

    def _failed(self, sink: Emit, step: Step, error: Exception) -> None:
        self._failures[id(sink)] += 1
        if self._failures[id(sink)] == MOST_FAILURES and sink in self.sinks:
            self.sinks.remove(sink)
            self.tell(GuardEventKind.GUARD_ERROR, step=step, part="sink", error=f"left out: {one_line(error)}")
