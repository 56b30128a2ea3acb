"""Which doubts stand once all are seen: who is not to blame, and what no fault of single files explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckpttool.core.domain.frozen import replace
from ckpttool.replicas.comparing.model import Doubt, DoubtKind

_PAIR = 2
"""Ranks that one fault may concern: of two that differ nobody knows which is whole."""

_MOST_STALE = 4
"""One in so many ranks may hold another file: where more differ, it was the arrangement that changed."""

_OF_FILES = frozenset({DoubtKind.DIFFERS, DoubtKind.STALE, DoubtKind.DRIFTED})
"""What says that something went wrong."""

_OF_NOBODY = frozenset({DoubtKind.TIED, DoubtKind.PARTED})
"""What says that some of them are to blame, and not who."""


def _is_outvoted(doubt: Doubt) -> bool:
    return len(doubt.others) > 1 and doubt.kind not in _OF_NOBODY


def weighed(doubts: Sequence[Doubt], holders: Mapping[str, int], ranks: int) -> Iterator[Doubt]:
    """Leave out who is not to blame, and take many files that differ for an arrangement that changed.

    A file that is known as another's, or as the same rank's of another step, is the odd one of two. But where several
    ranks have what others had, they changed places.

    Args:
        doubts: Of all files of one role.
        holders: By tensor: how many ranks have it.
        ranks: How many there are.
    """
    systematic = _systematic(doubts, holders)
    have_changed_places = sum(doubt.copy_of is not None for doubt in doubts) > 1
    many = sum(doubt.kind is DoubtKind.STALE and doubt.as_of is None for doubt in doubts)
    is_rearranged = have_changed_places or (many > _PAIR and many * _MOST_STALE > ranks)
    explained = {doubt.rank for doubt in doubts if doubt.as_of is not None or doubt.copy_of is not None}
    for doubt in doubts:
        is_moved = is_rearranged and (doubt.kind is DoubtKind.STALE or doubt.copy_of is not None)
        if doubt.kind in _OF_FILES and doubt.as_of is None and (is_moved or _are_in(doubt.tensors, systematic)):
            yield replace(doubt, kind=DoubtKind.PARTED)
        elif doubt.rank in explained or not explained.intersection(doubt.others) or _is_outvoted(doubt):
            yield doubt


def _systematic(doubts: Iterable[Doubt], holders: Mapping[str, int]) -> frozenset[str]:
    """Return the tensors in which so many ranks differ that no fault of single files explains it."""
    times = Counter(name for doubt in doubts if doubt.kind in _OF_FILES for name in doubt.tensors)
    return frozenset(name for name, count in times.items() if count > _PAIR and count * _MOST_STALE > holders[name])


def _are_in(names: Sequence[str], systematic: frozenset[str]) -> bool:
    return 2 * sum(name in systematic for name in names) >= len(names)
