"""Which doubts stand once all are seen: who is not to blame, and what no fault of single files explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpttool.core.domain.frozen import replace
from ckpttool.replicas.comparing.model import Suspicion, SuspicionKind

_PAIR = 2
"""Ranks that one fault may concern: of two that differ nobody knows which is whole."""

_MOST_STALE = 4
"""One in so many ranks may hold another file: where more differ, it was the arrangement that changed."""

_OF_FILES = frozenset({SuspicionKind.DIFFERS, SuspicionKind.STALE, SuspicionKind.DRIFTED})
"""What says that something went wrong."""

_OF_NOBODY = frozenset({SuspicionKind.TIED, SuspicionKind.PARTED})
"""What says that some of them are to blame, and not who."""


def _is_outvoted(suspicion: Suspicion) -> bool:
    return len(suspicion.replicas) > 1 and suspicion.kind not in _OF_NOBODY


def weighed(doubts: Sequence[Suspicion], holders: Mapping[str, int], ranks: int) -> Iterator[Suspicion]:
    """Leave out who is not to blame, and take many files that differ for an arrangement that changed.

    A file that is known as another's, or as the same rank's of another step, is the odd one of two. But where several
    ranks have what others had, they changed places.

    Args:
        doubts: Of all files of one role.
        holders: By tensor: how many ranks have it.
        ranks: How many there are.
    """
    systematic = _systematic(doubts, holders)
    have_changed_places = sum(suspicion.copy_of is not None for suspicion in doubts) > 1
    many = sum(suspicion.kind is SuspicionKind.STALE and suspicion.as_of is None for suspicion in doubts)
    is_rearranged = have_changed_places or (many > _PAIR and many * _MOST_STALE > ranks)
    explained = {suspicion.rank for suspicion in doubts if suspicion.as_of is not None or suspicion.copy_of is not None}
    for suspicion in doubts:
        is_moved = is_rearranged and (suspicion.kind is SuspicionKind.STALE or suspicion.copy_of is not None)
        if (
            suspicion.kind in _OF_FILES
            and suspicion.as_of is None
            and (is_moved or _are_in(suspicion.tensors, systematic))
        ):
            yield replace(suspicion, kind=SuspicionKind.PARTED)
        elif suspicion.rank in explained or not explained.intersection(suspicion.replicas) or _is_outvoted(suspicion):
            yield suspicion


def _systematic(doubts: Iterable[Suspicion], holders: Mapping[str, int]) -> frozenset[str]:
    """Return the tensors in which so many ranks differ that no fault of single files explains it."""
    times = Counter(name for suspicion in doubts if suspicion.kind in _OF_FILES for name in suspicion.tensors)
    return frozenset(name for name, count in times.items() if count > _PAIR and count * _MOST_STALE > holders[name])


def _are_in(names: Sequence[str], systematic: frozenset[str]) -> bool:
    return 2 * sum(name in systematic for name in names) >= len(names)
