"""Suspicions from finite values on this rank, and the recomputation of the steps concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpttool.core.domain.guarding import EventValue, GuardEventKind

if TYPE_CHECKING:
    from ckpttool.core.domain.units import Step
    from ckpttool.guard.capture.compute import Recompute

_SUSPICIOUS = frozenset({GuardEventKind.SDC_STRIKE, GuardEventKind.REPLICAS_DISAGREE})
"""Events about finite values that make a rank suspicious. A wrong matrix product is recomputed separately."""


class Recheck:
    """The next step to recompute, and the trainer's function for it."""

    def __init__(self) -> None:
        self.recompute: Recompute | None = None
        """A trainer's own function for recomputing a micro-batch, unless the user's settings have one."""
        self.is_running = False
        """Whether a step is being recomputed, so that forward and backward passes do not belong to the training run."""
        self._suspicions: list[tuple[GuardEventKind, Step]] = []

    def note(self, kind: GuardEventKind, step: Step, values: Mapping[str, EventValue], *, rank: int) -> None:
        """Record an event of the guard. If the event names a rank, only that rank becomes suspicious."""
        if kind is GuardEventKind.TRANSIENT:
            self._suspicions.append((GuardEventKind.RECOMPUTED, step))
        if kind not in _SUSPICIOUS:
            return
        ranks = values.get("ranks") or ([] if values.get("rank") is None else [values["rank"]])
        if not ranks or (isinstance(ranks, list) and rank in ranks):
            self._suspicions.append((kind, step))

    def forget(self) -> None:
        """Discard the suspicions, because a capture shows more than a comparison."""
        self._suspicions.clear()

    def run(self, step: Step, recheck: Callable[[GuardEventKind, Step], bool | None]) -> None:
        """Recompute the current step if there is a suspicion, or as the control for an earlier step.

        If a recomputation gives another result, the next step is the control. If the control differs too, the
        recomputation is not the same computation as in training.

        Args:
            step: The current step.
            recheck: Function of a suspicion and its step. Returns whether the result differs, or None if unknown.
        """
        suspicions, self._suspicions = self._suspicions, []
        if not suspicions:
            return
        suspicion, of_step = suspicions[0]
        if recheck(suspicion, of_step) and suspicion is not GuardEventKind.RECOMPUTED:
            self._suspicions.append((GuardEventKind.RECOMPUTED, step))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark forward and backward passes inside the context as not part of training."""
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False
