"""The batch-size schedule of the PyNative trainer: `training.rampup_batch_size`."""

from __future__ import annotations

import math

from ckpttool.core.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RampUp:
    """A linear schedule of the global batch size, based on the consumed samples.

    Source: `BatchSizeScheduler` of MindFormers 2.1.0; its results were compared with those of this class.
    """

    start: int
    """Global batch size at sample 0."""
    increment: int
    samples: int
    """Number of samples until the final size is reached."""
    final: int
    """The final size: `training.global_batch_size`."""

    @classmethod
    def of(cls, value: object, final: int) -> RampUp | None:
        """Return the schedule of `[start, increment, samples]`; None if the value is absent, or the trainer rejects it.

        Args:
            value: The value in the config.
            final: The final global batch size.
        """
        if not isinstance(value, list) or len(value) != 3:  # noqa: PLR2004  start, increment, samples
            return None
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in value):
            return None
        start, increment, samples = value
        if not (0 < start <= final and increment > 0 and samples >= 0 and (final - start) % increment == 0):
            return None
        return cls(start=start, increment=increment, samples=samples, final=final)

    @property
    def levels(self) -> int:
        """Number of increments until the final size."""
        return (self.final - self.start) // self.increment

    @property
    def samples_per_level(self) -> float:
        """Samples between two increments; 0 if the size is final from the start."""
        return self.samples / self.levels if self.levels and self.samples else 0.0

    def batch_at(self, consumed: int) -> int:
        """Return the global batch size after this many samples."""
        if consumed > self.samples or self.samples_per_level <= 0:
            return self.final
        return min(self.start + int(consumed / self.samples_per_level) * self.increment, self.final)

    def consumed_at(self, step: int) -> int:
        """Return the samples consumed after this many steps."""
        consumed, remaining, level = 0, step, 0
        while self.samples_per_level > 0 and level < self.levels:
            batch, boundary = self.start + level * self.increment, (level + 1) * self.samples_per_level
            steps = min(remaining, max(0, math.ceil((boundary - consumed) / batch)))
            consumed, remaining = consumed + steps * batch, remaining - steps
            if not remaining:
                break
            level = max(level + 1, int(consumed / self.samples_per_level) - 1)  # a step may pass many levels
        return consumed + remaining * self.final
