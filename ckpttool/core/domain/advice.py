"""Advice on settings and actions: thresholds that fit a run, and ways to avoid a spike."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

MANY_ALARMS = 0.01
"""Share of steps over a threshold above which the threshold no longer separates normal from abnormal steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One bar of a histogram."""

    low: float
    high: float
    """Exclusive, except for the last bar."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Recommended threshold for one setting, with the evidence for it."""

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
    """Number of values after the warm-up that were excluded as spikes or as non-finite."""
    false_alarms: float
    """Expected false alarms per 10,000 steps; an alarm is one step with a value at or above the threshold."""
    false_alarms_at_most: float
    """Upper bound of `false_alarms` at 95 % confidence."""
    alarm_share: float
    """Share of all values after the warm-up at or above the threshold, spikes included."""
    bins: tuple[Bin, ...]
    """Histogram of all finite values after the warm-up; the bins have equal width on a logarithmic scale."""

    @property
    def alarms_too_often(self) -> bool:
        """Whether the threshold is too low to separate anything, because the measured stretch is not normal."""
        return self.alarm_share > MANY_ALARMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why no threshold is recommended for a setting."""

    quantity: str
    points: int
    needed: int
    reason: str
    """Explanation in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Recommended thresholds for one run."""

    warm_up: int
    """Number of steps at the start that were excluded."""
    global_norm: Threshold | Refusal
    count_threshold: int | None
    """Number of consecutive steps above the threshold after which to stop; None if there is no threshold."""
    longest_run: int
    """Length in steps of the longest logged run at or above the threshold that did not end in a stop."""
    embedding_local_norm: Threshold | Refusal
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSettings:
    """Recommended thresholds in the config syntax of one trainer."""

    text: str
    """Text to merge into the trainer's config; empty if no threshold is recommended."""
    notes: tuple[str, ...]
    """Sentences that must be read together with the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAfter:
    """Loss before and after a spike of the norm, to show whether it recovered."""

    is_back: bool | None
    """Whether the loss recovered; None if the log has too few losses."""
    clause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A spike of the gradient norm that a resume should avoid."""

    onset: Step
    end: Step | None
    """First normal step after the spike; None if the log ends before that step."""
    loss: LossAfter | None = None
    """Loss around the spike; None if the log was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersDetour:
    """A detour in the config syntax of one trainer."""

    trainer: str
    """The trainer's name in JSON."""
    title: str
    """The trainer's name for people."""
    config: tuple[tuple[str, int | bool], ...] = ()
    """Settings for the trainer's config."""
    argument: str | None = None
    """Shell arguments for the trainer's command; None if the trainer uses a config, or there is nothing to skip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDetour:
    """A detour: load a checkpoint, and continue with the data at a later position than the checkpoint's."""

    checkpoint_step: Step
    skip_batches: int
    first_skipped: Step
    last_skipped: Step
    """Last batch that is skipped, whether or not it was trained before; counted from 1, like steps."""
    samples_before: int | None
    """Samples consumed at the checkpoint; None if the log does not show them."""
    samples_after: int | None
    """Samples consumed at the position from which the data continue; None if unknown."""
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
    """Two ways to handle a spike, with the cost of each: take a detour, or wait for the recovery."""

    spike: Spike
    choice: Choice
    reason: str
    """Explanation in one sentence."""
    detour: DataDetour | None
    """The detour; None if no good checkpoint is far enough before the onset."""
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
    """Advice on how to continue after the count threshold stopped the training."""

    stop: Step
    detour: DataDetour | None
    """The detour; None if there is no good checkpoint at or before the stop."""
    good_batches_lost: int
    """Number of good batches that are also skipped, between the checkpoint and the first bad batch."""
    notes: tuple[str, ...]

    @property
    def followed(self) -> bool:
        """Whether the detour is recommended: after a stop, this is the only option."""
        return self.detour is not None
