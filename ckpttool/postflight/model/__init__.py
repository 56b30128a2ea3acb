"""The answer of `postflight`: what two logs show about a resume."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import Step


class Aspect(str, Enum):
    """A part of a training run that a resume restores."""

    POSITION = "position"
    """The step counter."""
    DATA = "data"
    """The batches that follow."""
    WEIGHTS = "weights"
    """Weights, and the random numbers of the forward pass."""
    UPDATE = "update"
    """Optimizer state, learning rate and loss scale."""


class State(str, Enum):
    """What the logs show about an aspect."""

    PROVEN = "proven"
    """Equal to within 1 % of the step noise."""
    CONSISTENT = "consistent"
    """Nothing contradicts it, but the log could not show every fault."""
    NOT_SHOWN = "not-shown"
    CONTRADICTED = "contradicted"


class Word(str, Enum):
    """The kind of a fault."""

    POSITION = "position-wrong"
    LEARNING_RATE = "learning-rate-restarted"
    OPTIMIZER = "optimizer-lost"
    DATA_REPEATED = "data-repeated"
    DATA_OTHER = "data-other"
    RANDOM = "random-state-lost"
    CHECKPOINT = "other-checkpoint"
    SCRATCH = "weights-lost"
    DIFFERS = "differs"
    """A fault without a word: the logs differ, and no rule names the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgement of one aspect."""

    aspect: Aspect
    state: State
    why: str
    """One clause: the evidence, or what would be needed."""
    word: Word | None = None
    """The fault, if it is contradicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """One step that both runs logged after the save."""

    step: Step
    before: float
    """Loss of the first run."""
    after: float
    """Loss of the resumed run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two logs."""

    saved: Step
    """The step of the save from which the run resumed, as planned."""
    loaded: Step | None
    """The step from which the log shows that it resumed; None if it did not resume, or nothing shows it."""
    first: Step
    """The first step that the resumed run logged."""
    aspects: tuple[Judged, ...]
    """One per aspect, in the order of `Aspect`."""
    repeated: tuple[Repeated, ...]
    """The steps that both logs have, ascending."""
    median_z: float | None
    """Median difference of the loss over the first 30 repeated steps, in units of the step noise; None without them."""
    loss_noise: float | None
    """Step noise of the loss; None if too few rows before the save are logged."""
    resolution: float | None
    """Last printed digit of the loss, in units of the step noise."""

    def of(self, aspect: Aspect) -> Judged:
        """Return the judgement of an aspect."""
        return next(judged for judged in self.aspects if judged.aspect is aspect)

    def with_aspect(self, judged: Judged) -> Comparison:
        """Return the comparison with another judgement of one aspect."""
        aspects = tuple(judged if one.aspect is judged.aspect else one for one in self.aspects)
        return replace(self, aspects=aspects)
