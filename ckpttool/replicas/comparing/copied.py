"""Whose file lies under another rank's name, where neither has copies that would tell: slices never become equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, Proof
from ckpttool.core.verify.siblings.neighbours import are_slices
from ckpttool.replicas.comparing.columns import IdenticalRanks
from ckpttool.replicas.comparing.model import Suspicion, SuspicionKind, few

_PAIR = 2


def copied(
    groups: Sequence[IdenticalRanks],
    times: Mapping[int, int],
    nearly_equal: Callable[[IdenticalRanks, IdenticalRanks, int], bool],
) -> Iterator[Suspicion]:
    """Find files that are equal in every tensor now, and of which one held at other checkpoints what nobody else did.

    Two such checkpoints tell, or one at which nearly every rank had a slice of its own: else the other checkpoint may
    hold the wrong file. Not where all that differed was few: what ranks count for themselves is equal at times. Later
    checkpoints alone tell where only two are equal of many slices: else a device may have drifted since, or nobody has
    trained the slices yet.

    Args:
        groups: All files of one role.
        times: Of the other checkpoints of the same start, by their place in a history: below zero before this one.
        nearly_equal: Tells whether two files differed in few tensors at a time.
    """
    by_content: dict[tuple[tuple[str, ...], bytes], list[IdenticalRanks]] = defaultdict(list)
    for member in groups:
        by_content[member.names, member.digests].append(member)
    for (names, _), group in by_content.items():
        like = [member for member in groups if member.names == names] if len(group) > 1 else []
        slices = {time for index, time in times.items() if like and _were_slices(like, index)}
        for member in group if like else ():
            if not (_was_alone(member, like, times, nearly_equal) or _has_left_its_copy(member, group, like, times)):
                continue
            apart_times = {
                peer: [
                    time for index, time in times.items() if member.other_digests[index] and peer.other_digests[index]
                ]
                for peer in group
                if peer is not member
            }
            nearest = max(apart_times, key=lambda peer: len(apart_times[peer]))
            were_slices = not slices.isdisjoint(apart_times[nearest])
            if any(time < 0 for time in apart_times[nearest]) or (were_slices and _is_lone_pair(group, like)):
                yield Suspicion(
                    kind=SuspicionKind.COPIED,
                    rank=member.ranks[0],
                    replicas=nearest.ranks,
                    tensors=names,
                    compared=len(names),
                    proof=Proof.LEARNED if were_slices or len(apart_times[nearest]) > 1 else Proof.ONCE,
                    is_twin=False,
                    as_of=None,
                    copy_of=nearest.ranks[0],
                    since=None,
                    agreed_at=None,
                )


def _was_alone(
    group: IdenticalRanks,
    like: Sequence[IdenticalRanks],
    times: Mapping[int, int],
    nearly_equal: Callable[[IdenticalRanks, IdenticalRanks, int], bool],
) -> bool:
    """Tell whether nobody else held about the same at any other checkpoint; what has copies is judged by them."""
    indices = [index for index in times if group.other_digests[index] is not None]
    return (
        bool(indices)
        and len(group.ranks) == 1
        and not any(
            peer is not group and peer.other_digests[index] is not None and nearly_equal(group, peer, times[index])
            for index in indices
            for peer in like
        )
    )


def _has_left_its_copy(
    member: IdenticalRanks, group: Sequence[IdenticalRanks], like: Sequence[IdenticalRanks], times: Mapping[int, int]
) -> bool:
    """Tell whether it was one of two that held the same everywhere, and is now what others hold that keep together.

    Of two that differ nobody knows which is wrong; these others tell.
    """
    indices = [index for index in times if member.other_digests[index] is not None]
    stay = [peer for peer in group if len(peer.ranks) > 1]
    if not indices or not stay or len(member.ranks) > 1:
        return False
    equal = [
        peer for peer in like if all(peer.other_digests[index] == member.other_digests[index] for index in indices)
    ]
    copies = [peer for peer in equal if peer is not member]
    return (
        len(copies) == 1
        and copies[0] not in group
        and len(copies[0].ranks) == 1
        and any(
            all(peer.other_digests[index] not in {None, member.other_digests[index]} for index in indices)
            for peer in stay
        )
    )


def _is_lone_pair(group: Sequence[IdenticalRanks], like: Sequence[IdenticalRanks]) -> bool:
    """Tell whether all others hold slices of their own now, and these two one: in more tensors than a few."""
    if len(group) != _PAIR or len(like) == _PAIR or any(len(member.ranks) > 1 for member in like):
        return False
    places = range(0, len(like[0].digests), TENSOR_DIGEST_BYTES)
    contents = ({member.digests[place : place + TENSOR_DIGEST_BYTES] for member in like} for place in places)
    return sum(len(values) == len(like) - 1 for values in contents) > few(len(places))


def _were_slices(like: Sequence[IdenticalRanks], index: int) -> bool:
    known_groups = [group for group in like if group.other_digests[index] is not None]
    return are_slices(
        sum(len(group.ranks) for group in known_groups), len({group.other_digests[index] for group in known_groups})
    )
