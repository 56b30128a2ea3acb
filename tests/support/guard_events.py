"""Trainings that are guarded, without torch: norms in, an event file out, by the code that decides and writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.guard.files.events import EventFile
from ckpttool.guard.model.guarding import Action, GuardMode
from ckpttool.guard.rules.guarding import SpikeGuard
from ckpttool.health.policies.base import Policy

Told = tuple[GuardEventKind, Mapping[str, EventValue]]


def train(
    output: Path,
    norms: Iterable[float],
    *,
    policy: Policy | None = None,
    mode: GuardMode = GuardMode.ACT,
    first: int = 1,
    rank: int = 0,
    world_size: int = 1,
    told: Mapping[int, Iterable[Told]] | None = None,
) -> Path:
    """Go on with a training in a new process, up to a stop, and return its event file.

    Args:
        output: The output folder.
        norms: Of each step.
        policy: Of the guard.
        mode: Of the guard.
        first: The first step's number.
        rank: Whose file.
        world_size: How many ranks there are.
        told: What else happens, by step.
    """
    events = EventFile(output, rank=rank, world_size=world_size, step=first - 1)
    guard = SpikeGuard(policy, mode=mode)
    for step, norm in enumerate(norms, first):
        row = StepMetrics(step=Step(step), global_norm=norm, loss=math.nan if math.isnan(norm) else 2.5)
        decision = guard.settle(guard.propose(row))
        skipped = decision.action is not Action.APPLY
        values: dict[str, EventValue] = {"loss": row.loss, "global_norm": norm, "optimizer_step": guard.applied}
        events.emit(GuardEventKind.STEP, step=row.step, skipped=skipped, **values)
        for event in decision.events:
            events.emit(event.kind, step=event.step, **event.values)
        for kind, more in (told or {}).get(step, ()):
            events.emit(kind, step=row.step, **more)
        if decision.action is Action.STOP:
            break
    events.close()
    return Path(events.path)
