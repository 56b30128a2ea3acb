"""Advice on settings and actions: thresholds that fit a run, and ways to avoid a spike."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

MANY_ALARMS = 0.01
"""Share of steps over a threshold at which it no longer separates anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One bar of a histogram."""

    low: float
    high: float
    """Exclusive, except for the last bar."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A threshold that fits a run, with its evidence."""

    quantity: str
    """The setting for which it is recommended."""
    value: float
    points: int
    """Number of values in the normal stretch."""
    median: float
    spread: float
    """Robust standard deviation of the values' natural logarithm."""
    highest_normal: float
    """Largest value that counts as normal."""
    excluded: int
    """Number of values after the warm-up that were taken for spikes or were not finite."""
    false_alarms: float
    """Expected false alarms per 10,000 steps: values at or above the threshold at a single step only."""
    false_alarms_at_most: float
    """The same with 95 % confidence."""
    alarm_share: float
    """Share of all values after the warm-up at or above the threshold, spikes included."""
    bins: tuple[Bin, ...]
    """Bins of all finite values after the warm-up, equally wide on a logarithmic scale."""

    @property
    def alarms_too_often(self) -> bool:
        """Whether the threshold is too low to separate anything in this stretch, because the stretch is not normal."""
        return self.alarm_share > MANY_ALARMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why no threshold is recommended."""

    quantity: str
    points: int
    needed: int
    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Recommended thresholds for one run."""

    warm_up: int
    """Steps at the start that were left out."""
    global_norm: Threshold | Refusal
    count_threshold: int | None
    """Consecutive steps after which stopping is right; None if there is no threshold."""
    longest_run: int
    """Length of the longest run of logged steps at or above the threshold that did not end in a stop."""
    embedding_local_norm: Threshold | Refusal
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSettings:
    """The thresholds as settings of one trainer."""

    text: str
    """Text to merge into the trainer's config; empty if no threshold is recommended."""
    notes: tuple[str, ...]
    """Sentences that must be read together with the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAfter:
    """Whether the loss recovered after the norm's spike."""

    is_back: bool | None
    """None if the log has too few losses."""
    clause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A spike to avoid."""

    onset: Step
    end: Step | None
    """First normal step after the spike; None if the log ends before that step."""
    loss: LossAfter | None = None
    """None if the log was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersDetour:
    """A detour as settings of one trainer."""

    trainer: str
    """The trainer's name in JSON."""
    title: str
    """The trainer's name for people."""
    config: tuple[tuple[str, int | bool], ...] = ()
    """Settings for the trainer's config."""
    argument: str | None = None
    """Shell arguments for the trainer's command; None if the trainer has a config, or there is nothing to skip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDetour:
    """A detour: load a checkpoint, and let the data continue later than its position."""

    checkpoint_step: Step
    skip_batches: int
    first_skipped: Step
    last_skipped: Step
    """Counted from 1, like steps: the last batch of the data that is not trained, or not trained again."""
    samples_before: int | None
    """Samples consumed at the checkpoint; None if the log does not show them."""
    samples_after: int | None
    """Samples consumed at the position where the data continue."""
    detours: tuple[TrainersDetour, ...] = ()
    """The settings of each trainer that supports a detour."""


class Choice(str, Enum):
    """The recommended action after a spike."""

    WAIT = "wait"
    REWIND = "rewind"
    NONE = "none"
    """The run has not recovered, and there is no checkpoint to go back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeAdvice:
    """Both ways to avoid a spike, with the cost of each."""

    spike: Spike
    choice: Choice
    reason: str
    """One sentence."""
    detour: DataDetour | None
    """None if no good checkpoint is far enough before the onset."""
    rewind_cost: int | None
    """Steps to redo."""
    wait_cost: int | None
    """Steps from the onset to the recovery; None if the run has not recovered yet."""
    notes: tuple[str, ...]

    @property
    def followed(self) -> bool:
        """Whether the detour is recommended."""
        return self.choice is Choice.REWIND


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAdvice:
    """The way to continue after the count threshold stopped the training."""

    stop: Step
    detour: DataDetour | None
    """None if there is no good checkpoint at or before the stop."""
    good_batches_lost: int
    """Batches between the checkpoint and the first bad one that are also skipped."""
    notes: tuple[str, ...]

    @property
    def followed(self) -> bool:
        """Whether the detour is recommended: after a stop, this is the only option."""
        return self.detour is not None
