"""The values of tensors, which show whether the model in the file is healthy, not whether the file is intact.

Statistics are stored in columns, because thousands of ranks have millions of tensors, and an object has 200 bytes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import overload

from ckpttool.core.domain.finding import Code, Finding, Row, note, suspect
from ckpttool.core.domain.verdict import TensorStat
from ckpttool.core.formats.base import quoted
from ckpttool.core.verify.checks.structure import capped
from ckpttool.core.verify.kernels.passes import PassResult

Kind = tuple[str, str, int]
"""Name, type and number of elements of a tensor, which are equal on every rank with the same slice."""

Oddity = tuple[int, int, bool]
"""Numbers of NaNs and infinities, and whether there are only denormals; for nearly all tensors, 0, 0 and False."""

_MOST_SHARED = 10_000
"""Maximum number of tensors of a shard whose kinds share memory with other shards, because files set the number."""

JUMP = 1000.0
"""Factor between the norms of a tensor in two checkpoints above which the change is suspect.

The norms of weights in a healthy run change by a few percent between two saves. Second moments of Adam are squares of
gradients, however, and gradients fall thirtyfold while a run settles, a factor of 900. A factor above a thousand does
not occur in training. Flipped bits are also detected, because the highest bit of an exponent makes a number 1e38 times
as large.
"""


_BEST_SCORE = re.compile(r"callbacks\..*\.(?:best_k_models\..*|best_model_score|best_score|current_score|kth_value)")
"""Scores that begin at infinity and stay there if nothing is monitored; they are not part of the model."""

_PADDED = re.compile(r".*\.gbuf_idx_[0-9]+\..*\.bucket_idx_[0-9]+\.[a-z_]+(?: \(part [0-9]+ of [0-9]+\))?")
"""Flat buckets of a distributed optimizer, in which the padding between parameters is uninitialised memory."""


class StatColumns(Sequence[TensorStat]):
    """A tuple of `TensorStat` that takes less memory; each item is created on access."""

    __slots__ = ("_absmax", "_kinds", "_norms", "_oddities")

    def __init__(
        self, kinds: Iterable[Kind], *, absmax: Sequence[float], norms: Iterable[float], oddities: Mapping[int, Oddity]
    ) -> None:
        """Store one column per field; `oddities` has only unusual tensors, by position."""
        kinds_list = tuple(kinds)
        self._kinds = _shared(kinds_list) if len(kinds_list) <= _MOST_SHARED else kinds_list
        narrow = array("f", absmax)
        # Nearly all floats of a model have 32 bits or fewer, and so has their largest one.
        self._absmax = narrow if list(narrow) == list(absmax) else array("d", absmax)
        self._norms = array("d", norms)
        self._oddities = dict(oddities) or None

    def __len__(self) -> int:
        """Count the tensors."""
        return len(self._kinds)

    @overload
    def __getitem__(self, index: int) -> TensorStat: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TensorStat, ...]: ...
    def __getitem__(self, index: int | slice) -> TensorStat | tuple[TensorStat, ...]:
        """Return the statistics of a tensor, or of several."""
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        at = range(len(self))[index]
        name, dtype, elements = self._kinds[at]
        nans, infinities, denormal_only = (self._oddities or {}).get(at, (0, 0, False))
        return TensorStat(
            name=name,
            dtype=dtype,
            elements=elements,
            nans=nans,
            infinities=infinities,
            absmax=self._absmax[at],
            norm=self._norms[at],
            denormal_only=denormal_only,
        )

    def __eq__(self, other: object) -> bool:
        """Return whether all statistics are equal."""
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        """Hash like a tuple of the same items."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Format the statistics as a tuple."""
        return repr(tuple(self))

    def sick(self) -> Iterator[TensorStat]:
        """Yield the tensors that contain NaN or infinity."""
        return (self[at] for at, (nans, infinities, _) in sorted((self._oddities or {}).items()) if nans or infinities)

    def moved(self, before: StatColumns, factor: float) -> Iterator[tuple[TensorStat, TensorStat]] | None:
        """Yield the tensors whose norm became zero or changed by more than a factor, with their earlier values.

        Returns:
            None if the two shards do not have the same tensors in the same order.
        """
        if self._kinds is not before._kinds and self._kinds != before._kinds:
            return None
        norms = enumerate(zip(self._norms, before._norms, strict=True))
        return (
            (self[at], before[at])
            for at, (current, past) in norms
            if past and not (current and current / factor <= past <= current * factor)
        )


@lru_cache(maxsize=16)  # only pipeline stages differ; more would only cost memory
def _shared(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Return the first tuple that equals this one, so that shards share its memory."""
    return kinds


def stats_of(content: PassResult) -> StatColumns:
    """Return the statistics of every floating-point tensor, in file order.

    Raises:
        ValueError: A tensor was not read completely.
    """
    kinds: list[Kind] = []
    absmax: list[float] = []
    norms: list[float] = []
    oddities: dict[int, Oddity] = {}
    for entry in content.entries:
        if entry.numeric is None:
            continue
        numbers = entry.numeric.stats(entry.entry.name)
        if not numbers.finite or numbers.denormal_only:
            oddities[len(kinds)] = (numbers.nans, numbers.infinities, numbers.denormal_only)
        kinds.append((numbers.name, numbers.dtype, numbers.elements))
        absmax.append(numbers.absmax)
        norms.append(numbers.norm)
    return StatColumns(kinds, absmax=absmax, norms=norms, oddities=oddities)


def judge_numbers(path: str, stats: Sequence[TensorStat]) -> Sequence[Finding]:
    """Report NaN and infinity, because no training run can continue from such values."""
    sick = stats.sick() if isinstance(stats, StatColumns) else (stat for stat in stats if not stat.finite)
    return capped(_nonfinite(path, stat) for stat in sick if not _BEST_SCORE.fullmatch(stat.name))


def _nonfinite(path: str, stat: TensorStat) -> Finding:
    message = f"{quoted(stat.name)} has {stat.nans} NaN and {stat.infinities} infinite values of {stat.elements}"
    if _PADDED.fullmatch(stat.name):
        text = f"{message}: it may be the padding of the bucket, which is never written"
        return note(Code.NONFINITE_VALUES, text, path=path, tensor=stat.name)
    return suspect(
        Code.NONFINITE_VALUES,
        message,
        path=path,
        tensor=stat.name,
        expected="0",
        actual=str(stat.nans + stat.infinities),
        remedy="resume from a checkpoint from before they appeared",
    )


def compare_numbers(
    path: str, stats: Sequence[TensorStat], before: Sequence[TensorStat], *, jump: float
) -> Sequence[Finding]:
    """Report tensors that became all zero, or whose norm jumped, since the previous checkpoint.

    Args:
        path: The shard.
        stats: The statistics of the shard.
        before: The same rank's statistics in the previous checkpoint.
        jump: Factor, up or down, above which a change is suspect.
    """
    return capped(_changes(path, stats, before, jump))


def _changes(path: str, stats: Sequence[TensorStat], before: Sequence[TensorStat], jump: float) -> Iterator[Finding]:
    for current, old in _pairs(stats, before, jump):
        # A single number is a counter or a schedule (loss_scale, beta1_power, learning_rate): such a value is expected
        # to change.
        if not old.norm or old.elements != current.elements or current.elements == 1 or _PADDED.fullmatch(current.name):
            continue
        name = quoted(current.name)
        if not current.norm and current.finite:
            message = f"{name} is all zeros; its norm was {old.norm:.4g} in the previous checkpoint"
            yield _suspect(Code.ALL_ZERO_TENSOR, path, current.name, message)
        elif current.norm and not current.norm / jump <= old.norm <= current.norm * jump:
            message = (
                f"the norm of {name} went from {old.norm:.4g} in the previous checkpoint to "
                f"{current.norm:.4g}, by more than a factor of {jump:g}"
            )
            yield _suspect(Code.NORM_JUMP, path, current.name, message)


def _pairs(
    stats: Sequence[TensorStat], before: Sequence[TensorStat], jump: float
) -> Iterable[tuple[TensorStat, TensorStat]]:
    """Return the tensors to compare, each with its counterpart in the previous checkpoint."""
    if isinstance(stats, StatColumns) and isinstance(before, StatColumns):
        moved = stats.moved(before, jump)
        if moved is not None:
            return moved
    by_name = {stat.name: stat for stat in before}
    return ((stat, by_name[stat.name]) for stat in stats if stat.name in by_name)


def _suspect(code: Row, path: str, tensor: str, message: str) -> Finding:
    return suspect(
        code,
        message,
        path=path,
        tensor=tensor,
        remedy="check the loss curve there, or resume from the previous checkpoint; --jump sets the factor",
    )
