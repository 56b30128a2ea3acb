"""Find files with another rank's name that no replica reveals, because different slices never become equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, Proof
from ckpttool.core.verify.siblings.neighbours import are_slices
from ckpttool.replicas.comparing.columns import IdenticalRanks, digest_at
from ckpttool.replicas.comparing.model import Suspicion, SuspicionKind, few

_PAIR = 2

NearlyEqual: TypeAlias = Callable[[IdenticalRanks, IdenticalRanks, int], bool]
"""A function that returns whether two files differed in few tensors at a checkpoint."""


def misplaced_files(
    groups: Sequence[IdenticalRanks], offsets: Mapping[int, int], nearly_equal: NearlyEqual
) -> Iterator[Suspicion]:
    """Find files that are equal in every tensor here, although one was unique at other checkpoints.

    Two such checkpoints prove it, or one at which nearly every rank had a separate slice: otherwise the other
    checkpoint may have the wrong file. Files that differed in few tensors are not evidence: counters of ranks are
    sometimes equal. Later checkpoints alone prove it only for two equal files among many slices: otherwise a device may
    have drifted since, or the slices were not trained yet.

    Args:
        groups: All files of one role.
        offsets: By position in a history: distance in checkpoints to the checkpoint of the same start; negative if
            older.
        nearly_equal: Returns whether two files differed in few tensors at such a checkpoint.
    """
    by_content: dict[tuple[tuple[str, ...], bytes], list[IdenticalRanks]] = defaultdict(list)
    for group in groups:
        by_content[group.names, group.digests].append(group)
    for (names, _), equal in by_content.items():
        if len(equal) == 1:
            continue
        comparable = [group for group in groups if group.names == names]
        of_slices = {offset for index, offset in offsets.items() if _were_slices(comparable, index)}
        for group in equal:
            if not (
                _was_alone(group, comparable, offsets, nearly_equal)
                or _has_left_its_replica(group, equal, comparable, offsets)
            ):
                continue
            known = {
                peer: [
                    offset
                    for index, offset in offsets.items()
                    if group.other_digests[index] and peer.other_digests[index]
                ]
                for peer in equal
                if peer is not group
            }
            peer = max(known, key=lambda peer: len(known[peer]))
            were_slices = not of_slices.isdisjoint(known[peer])
            is_before = any(offset < 0 for offset in known[peer])
            if is_before or (were_slices and _is_only_pair(equal, comparable)):
                yield Suspicion(
                    kind=SuspicionKind.COPIED,
                    rank=group.ranks[0],
                    replicas=peer.ranks,
                    tensors=names,
                    compared=len(names),
                    proof=Proof.LEARNED if were_slices or len(known[peer]) > 1 else Proof.ONCE,
                    is_twin=False,
                    as_of=None,
                    copy_of=peer.ranks[0],
                    since=None,
                    agreed_at=None,
                )


def _known_at(group: IdenticalRanks, offsets: Mapping[int, int]) -> list[int]:
    return [index for index in offsets if group.other_digests[index] is not None]


def _was_alone(
    group: IdenticalRanks, comparable: Sequence[IdenticalRanks], offsets: Mapping[int, int], nearly_equal: NearlyEqual
) -> bool:
    """Return whether no file was nearly equal at any other checkpoint; a file with replicas is judged by those."""
    known = _known_at(group, offsets)
    if not known or len(group.ranks) > 1:
        return False
    return not any(
        nearly_equal(group, peer, offsets[index])
        for index in known
        for peer in comparable
        if peer is not group and peer.other_digests[index] is not None
    )


def _has_left_its_replica(
    group: IdenticalRanks,
    equal: Sequence[IdenticalRanks],
    comparable: Sequence[IdenticalRanks],
    offsets: Mapping[int, int],
) -> bool:
    """Return whether a file had one replica, and is now equal to other files that stayed equal.

    If two replicas differ, it is unknown which is damaged; these others show it.
    """
    known = _known_at(group, offsets)
    if not known or len(group.ranks) > 1:
        return False
    replicas = [
        peer
        for peer in comparable
        if peer is not group and all(peer.other_digests[index] == group.other_digests[index] for index in known)
    ]
    if len(replicas) != 1 or replicas[0] in equal or len(replicas[0].ranks) > 1:
        return False
    together = [peer for peer in equal if len(peer.ranks) > 1]
    return any(
        all(peer.other_digests[index] not in {None, group.other_digests[index]} for index in known) for peer in together
    )


def _is_only_pair(equal: Sequence[IdenticalRanks], comparable: Sequence[IdenticalRanks]) -> bool:
    """Return whether only these two files share a slice in more than a few tensors."""
    if len(equal) != _PAIR or len(comparable) == _PAIR or any(len(group.ranks) > 1 for group in comparable):
        return False
    places = range(0, len(comparable[0].digests), TENSOR_DIGEST_BYTES)
    contents = [len({digest_at(group.digests, place) for group in comparable}) for place in places]
    return contents.count(len(comparable) - 1) > few(len(places))


def _were_slices(comparable: Sequence[IdenticalRanks], index: int) -> bool:
    known = [group for group in comparable if group.other_digests[index] is not None]
    return are_slices(sum(len(group.ranks) for group in known), len({group.other_digests[index] for group in known}))
