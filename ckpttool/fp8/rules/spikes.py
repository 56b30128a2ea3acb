"""Spikes of a loss curve. They occur in any arithmetic, and would hide or resemble a lasting gap."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from ckpttool.core.domain.frozen import dataclass
from ckpttool.fp8.model.curves import Curve, Pairs, Spike
from ckpttool.fp8.rules.align import middle
from ckpttool.health.policies.robust_z import MAD_TO_SIGMA

_WINDOW = 128
"""Number of normal values to compare a value with, as for the z-score of `health`."""
_TO_BEGIN = 64
_BEGINS = 7.0
_ENDS = 3.0
_CALM = 5
"""Number of consecutive normal values that end a spike."""
_NEW_LEVEL = 10 * _WINDOW
"""Number of values after which a spike that has not ended counts as a loss that stays high."""
_LEAST_PATIENCE = 50
"""Number of values that any spike may last."""
_TIMES_THE_BASELINE = 3
_SHARED_WITHIN = 10
"""Maximum number of steps between spikes that count as shared."""
_LEAST_SPREAD = 1e-4
"""Minimum spread as a share of the median, because changes in the last digits of a flat curve are not spikes."""
_BEFORE = 9
"""Number of differences whose median replaces those in a spike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Position of a spike in a series of values."""

    first: int
    last: int
    height: float | None
    """Height above the previous median, or None if no value was finite."""

    @property
    def values(self) -> int:
        """Number of values."""
        return self.last - self.first + 1


class _Normal:
    """The last normal values, in order of time and by size."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._recent = deque(values)
        self._ordered = sorted(self._recent)

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def median(self) -> float:
        return middle(self._ordered)

    def add(self, value: float) -> None:
        insort(self._ordered, value)
        self._recent.append(value)
        if len(self._recent) > _WINDOW:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def is_above(self, value: float, z: float) -> bool:
        """Return whether a value exceeds the median by more than this many robust standard deviations."""
        over = value - self.median
        if over <= z * _LEAST_SPREAD * abs(self.median):
            return False
        eighth = len(self._ordered) // 8  # half of the values are within the deviation, so a quarter certainly is
        near = min(self._ordered[5 * eighth] - self.median, self.median - self._ordered[3 * eighth])
        return over > z * MAD_TO_SIGMA * near and over > z * MAD_TO_SIGMA * self._deviation()

    def _deviation(self) -> float:
        return middle(sorted(abs(value - self.median) for value in self._ordered))


def find_spikes(values: Sequence[float]) -> list[Span]:
    """Return the ranges in which values rise far above earlier values and fall back, or are not numbers.

    A rise that has not ended counts as a spike only while it is short. After that it is the new level of the loss.
    """
    spikes: list[Span] = []
    normal = _Normal()
    first, calm = -1, 0
    for place, value in enumerate(values):
        finite = math.isfinite(value)
        if first < 0:
            if len(normal) >= _TO_BEGIN and (not finite or normal.is_above(value, _BEGINS)):
                first, calm = place, 0
            elif finite:
                normal.add(value)
            continue
        calm = calm + 1 if finite and not normal.is_above(value, _ENDS) else 0
        if calm == _CALM:
            spikes.append(_span(values, first, place - _CALM, normal))
            for back in values[place - _CALM + 1 : place + 1]:
                normal.add(back)
            first = -1
        elif place - first + 1 >= _NEW_LEVEL:
            level = [level for level in values[first : place + 1] if math.isfinite(level)][-_WINDOW:]
            normal = _Normal(level)
            first = -1
    if first >= 0 and len(values) - first <= _LEAST_PATIENCE:
        spikes.append(_span(values, first, len(values) - 1, normal))
    return spikes


def _span(values: Sequence[float], first: int, last: int, normal: _Normal) -> Span:
    finite = [value for value in values[first : last + 1] if math.isfinite(value)]
    return Span(first=first, last=last, height=max(finite) - normal.median if finite else None)


def common_spikes(
    baseline: tuple[Curve, Sequence[Span]], candidate: tuple[Curve, Sequence[Span]], *, by_step: float
) -> tuple[Spike, ...]:
    """Return the spikes of both runs in ascending order, and whether the other run has a spike within ten steps.

    Args:
        baseline: The run, and the positions of its spikes in its values.
        candidate: The same for the candidate.
        by_step: Increase in the pairing position per step of the baseline.
    """
    near = _SHARED_WITHIN * by_step

    def meet(curve: Curve, span: Span, reference: Curve, another: Span) -> bool:
        begins, ends = curve.places[span.first] - near, curve.places[span.last] + near
        return reference.places[another.first] <= ends and begins <= reference.places[another.last]

    runs = ((False, baseline, candidate), (True, candidate, baseline))
    spikes = [
        Spike(
            candidate=is_candidate,
            first=curve.steps[span.first],
            last=curve.steps[span.last],
            values=span.values,
            height=span.height,
            shared=any(meet(curve, span, peer, another) for another in of_other),
        )
        for is_candidate, (curve, spans), (peer, of_other) in runs
        for span in spans
    ]
    return tuple(sorted(spikes, key=lambda spike: (spike.first, spike.candidate)))


def are_ordinary(spikes: Iterable[Spike]) -> bool:
    """Return whether the candidate's spikes end as quickly as the baseline's, or within a few steps."""
    slowest = {False: 0, True: 0}
    for spike in spikes:
        slowest[spike.candidate] = max(slowest[spike.candidate], spike.values)
    return slowest[True] <= max(_LEAST_PATIENCE, _TIMES_THE_BASELINE * slowest[False])


def spiked(pairs: Pairs, runs: Iterable[tuple[Curve, Sequence[Span]]]) -> set[int]:
    """Return the indices of pairs in a spike of any run, or an empty set if they are over half of all pairs."""
    places: set[int] = set()
    for curve, spans in runs:
        for span in spans:
            first, last = curve.places[span.first], curve.places[span.last]
            places.update(range(bisect_left(pairs.places, first), bisect_left(pairs.places, last + 1)))
    return places if 2 * len(places) <= len(pairs.places) else set()


def calmed(values: Sequence[float], spiked: Collection[int]) -> list[float]:
    """Return the values, with those in a spike replaced by the median of the last values before it."""
    calm: list[float] = []
    before: deque[float] = deque(maxlen=_BEFORE)
    for place, value in enumerate(values):
        if place in spiked and before:
            calm.append(middle(sorted(before)))
        else:
            before.append(value)
            calm.append(value)
    return calm
