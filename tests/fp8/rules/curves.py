"""Loss curves from a seed: the course of a training, the noise of its batches, and what wanders from run to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Curve

STEPS = 2000
ONSET = 1201
"""First step at which a late effect shows."""
NOISE = 0.04
WANDER = 0.004
MEMORY = 150


class Runs:
    """Runs of one training: the same model and the same data, but for what differs from run to run."""

    def __init__(self, seed: int, *, steps: int = STEPS, noise: float = NOISE, wander: float = WANDER) -> None:
        self._chance = Random(seed)  # noqa: S311 (a test)
        self.steps = steps
        self._noise, self._wander = noise, wander
        self._batches = [self._chance.gauss(0, noise) for _ in range(steps)]

    def run(self, *, other_data: bool = False) -> list[float]:
        """Return the losses of one run."""
        batches = self._batches
        if other_data:
            batches = [self._chance.gauss(0, self._noise) for _ in range(self.steps)]
        course = (2.0 + 4.0 * math.exp(-6 * step / self.steps) for step in range(self.steps))
        own = (self._chance.gauss(0, self._noise / 10) for _ in range(self.steps))
        return [sum(parts) for parts in zip(course, batches, own, self._wandering(), strict=True)]

    def _wandering(self) -> list[float]:
        keep = math.exp(-1 / MEMORY)
        value, course = self._chance.gauss(0, self._wander), []
        for _ in range(self.steps):
            course.append(value)
            value = keep * value + math.sqrt(1 - keep * keep) * self._chance.gauss(0, self._wander)
        return course


def stepped(losses: Sequence[float], by: float = 0.03, since: int = ONSET) -> list[float]:
    """Return the losses, worse by as much ever since a step."""
    return [loss + by * (step >= since) for step, loss in enumerate(losses, 1)]


def drifting(losses: Sequence[float], by: float = 0.09, since: int = ONSET) -> list[float]:
    """Return the losses, worse since a step and by so much at the end."""
    return [loss + by * max(0, step - since) / (len(losses) - since) for step, loss in enumerate(losses, 1)]


def curve(
    losses: Sequence[float], *, every: int = 1, first: int = 1, rate: float | None = None, norm: float | None = None
) -> Curve:
    """Return losses as a log shows them, one each so many steps."""
    steps = tuple(Step(first + every * place) for place in range(len(losses)))
    return Curve(
        places=steps,
        steps=steps,
        losses=tuple(losses),
        norms=(norm,) * len(losses),
        rates=(rate,) * len(losses),
    )
