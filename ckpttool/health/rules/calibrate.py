"""Thresholds that fit a run, from a normal stretch of its log."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

from ckpttool.core.domain.advice import Bin, Calibration, Refusal, Threshold
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.health.policies.robust_z import robust
from ckpttool.health.policies.skip import SkipPolicy

NEEDED_POINTS = 200
"""Minimum number of steps; with fewer, one false skip per thousand steps cannot be distinguished from none."""

_OUTLIER_Z = 6.0
"""Robust standard deviations above which a value does not belong to the normal stretch."""

_THRESHOLD_Z = 8.0
_HEADROOM = 1.25
"""Factor above the highest normal value, because the next ten thousand steps exceed the last thousand."""

_WARM_UP_SHARE = 0.1
_BINS = 24
_PER = 10_000
_RULE_OF_THREE = 3.0  # no event in n trials: at most 3/n with 95 % confidence


def calibrate(metrics: Sequence[StepMetrics], *, warm_up: int | None = None) -> Calibration:
    """Recommend thresholds for the data skip and the health monitor, or return why that is impossible.

    Norms are judged by their logarithm: they spread by factors, not by amounts.

    Args:
        metrics: One entry per step, ascending.
        warm_up: Number of logged steps to leave out at the start, where norms are naturally high; by default, a tenth.
    """
    left_out = int(len(metrics) * _WARM_UP_SHARE) if warm_up is None else warm_up
    norms, embedding = _Points(), _Points()
    for row in metrics[left_out:]:
        norms.add(row.step, row.global_norm)
        # 0 is not a norm: it is printed if no tensor matched the embedding.
        embedding.add(row.step, row.embedding_local_norm or None)
    global_norm = _threshold("global_norm_spike_threshold", norms)
    longest = _longest_run(norms, global_norm.value) if isinstance(global_norm, Threshold) else 0
    return Calibration(
        warm_up=left_out,
        global_norm=global_norm,
        count_threshold=max(SkipPolicy().count_threshold, 2 * longest) if isinstance(global_norm, Threshold) else None,
        longest_run=longest,
        embedding_local_norm=_threshold("embedding_local_norm_threshold", embedding),
        notes=tuple(_notes(global_norm)),
    )


class _Points:
    """Steps and values in columns, because a run may have millions of steps."""

    def __init__(self) -> None:
        self.steps: list[Step] | array[int] = array("q")
        self.values = array("d")

    def add(self, step: Step, value: float | None) -> None:
        if value is None:
            return
        try:
            self.steps.append(step)
        except OverflowError:  # implausible for a training run, but a log may contain it
            self.steps = [*map(Step, self.steps), step]
        self.values.append(value)


def _threshold(quantity: str, points: _Points) -> Threshold | Refusal:
    finite = array("d", (value for value in points.values if 0 < value < math.inf))
    if len(finite) < NEEDED_POINTS:
        reason = f"{len(finite)} values after the warm-up are not enough: {NEEDED_POINTS} are needed"
        return Refusal(quantity=quantity, points=len(finite), needed=NEEDED_POINTS, reason=reason)
    logs = array("d", map(math.log, finite))
    median, spread = robust(logs)
    normal = array("d", (value for value, log in zip(finite, logs, strict=True) if log <= median + _OUTLIER_Z * spread))
    value = _rounded_up(max(math.exp(median + _THRESHOLD_Z * spread), _HEADROOM * max(normal)))
    count = len(points.values)
    alarms = sum(point >= value or math.isnan(point) for point in points.values)
    single = sum(length == 1 for length in _runs(points, value))
    return Threshold(
        quantity=quantity,
        value=value,
        points=len(normal),
        median=math.exp(median),
        spread=spread,
        highest_normal=max(normal),
        excluded=count - len(normal),
        false_alarms=_PER * single / count,
        false_alarms_at_most=_PER * _upper_rate(single, count),
        alarm_share=alarms / count,
        bins=_histogram(finite),
    )


def _rounded_up(value: float) -> float:
    """Round up to two digits, because more digits would suggest too much precision."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.6g}")


def _upper_rate(events: int, trials: int) -> float:
    """Return the rate at 95 % confidence: the rule of three, widened by the observed events."""
    return min(1.0, (events + _RULE_OF_THREE + 2 * math.sqrt(events)) / trials)


def _runs(points: _Points, threshold: float) -> Iterator[int]:
    """Yield the lengths of series of neighbouring steps at or above the threshold that ended on their own."""
    length = 0
    last: int | None = None
    for step, value in zip(points.steps, points.values, strict=True):
        if last is not None and step != last + 1:
            length = 0  # the steps in between are unknown, and so is the length
        last = step
        if value >= threshold or math.isnan(value):
            length += 1
        elif length:
            yield length
            length = 0


def _longest_run(points: _Points, threshold: float) -> int:
    return max(_runs(points, threshold), default=0)


def _histogram(values: Sequence[float]) -> tuple[Bin, ...]:
    low, high = math.log(min(values)), math.log(max(values))
    width = (high - low) / _BINS
    if width == 0:
        return (Bin(low=min(values), high=max(values), count=len(values)),)
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int((math.log(value) - low) / width))] += 1
    edges = [math.exp(low + width * index) for index in range(_BINS + 1)]
    return tuple(Bin(low=edges[index], high=edges[index + 1], count=count) for index, count in enumerate(counts))


def _notes(global_norm: Threshold | Refusal) -> Iterator[str]:
    if isinstance(global_norm, Refusal):
        return
    if global_norm.alarms_too_often:
        yield (
            f"{global_norm.alarm_share:.1%} of the steps are at or above {global_norm.value:g}: this part of the log "
            "is not normal, so do not use a threshold from it"
        )
