"""Suspicions of this rank from finite values, and the steps that are computed again because of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpttool.core.domain.guarding import EventValue, GuardEventKind

if TYPE_CHECKING:
    from ckpttool.core.domain.units import Step
    from ckpttool.guard.capture.compute import Recompute

_SUSPICIOUS = frozenset({GuardEventKind.SDC_STRIKE, GuardEventKind.REPLICAS_DISAGREE})
"""Events of finite values that make a rank suspicious. A wrong matrix product is computed again on its own."""


class Recheck:
    """The next step to compute again, and the trainer's function for it."""

    def __init__(self) -> None:
        self.recompute: Recompute | None = None
        """A trainer's own function to compute a micro-batch again, unless the user's settings have one."""
        self.is_running = False
        """Whether a step is being computed again: its forward and backward passes are not the training's."""
        self._suspicions: list[tuple[GuardEventKind, Step]] = []

    def note(self, kind: GuardEventKind, step: Step, values: Mapping[str, EventValue], *, rank: int) -> None:
        """Take an event of the guard; of a known rank it is a suspicion on that rank only."""
        if kind is GuardEventKind.TRANSIENT:
            self._suspicions.append((GuardEventKind.RECOMPUTED, step))
        if kind not in _SUSPICIOUS:
            return
        ranks = values.get("ranks") or ([] if values.get("rank") is None else [values["rank"]])
        if not ranks or (isinstance(ranks, list) and rank in ranks):
            self._suspicions.append((kind, step))

    def forget(self) -> None:
        """Drop the suspicions: a capture shows more than a comparison."""
        self._suspicions.clear()

    def run(self, step: Step, recheck: Callable[[GuardEventKind, Step], bool | None]) -> None:
        """Compute the current step again if there is a suspicion, or if it is the control of an earlier step.

        After a recomputation with another result, the next step is the control: if that differs, too, the recomputation
        is not the same computation as the training's.

        Args:
            step: The current step.
            recheck: Takes a suspicion and its step, and returns whether the result is another one; None: unknown.
        """
        suspicions, self._suspicions = self._suspicions, []
        if not suspicions:
            return
        suspicion, of_step = suspicions[0]
        if recheck(suspicion, of_step) and suspicion is not GuardEventKind.RECOMPUTED:
            self._suspicions.append((GuardEventKind.RECOMPUTED, step))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark forward and backward passes inside as not the training's."""
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False
