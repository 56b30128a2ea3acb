"""What is said of files that are not what their replicas hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, Severity, damage, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import Proof, SavedAt
from ckpttool.core.domain.units import Rank, at_step, counted, on_ranks
from ckpttool.core.domain.verdict import MIN_COPIES
from ckpttool.replicas.comparing.model import FEW, DifferingBytes, Doubt, DoubtKind

_OF_KIND = {
    DoubtKind.ODD: Code.REPLICA_DIFFERS,
    DoubtKind.DIFFERS: Code.REPLICA_DIFFERS,
    DoubtKind.TIED: Code.REPLICA_DIFFERS,
    DoubtKind.STALE: Code.REPLICA_STALE,
    DoubtKind.DRIFTED: Code.REPLICA_DRIFTED,
}

_OF_ANOTHER_FILE = frozenset({DoubtKind.STALE, DoubtKind.COPIED, DoubtKind.PARTED})

_ANOTHER = "resume from another checkpoint"
_LOOK_AT_DEVICE = "resume from a checkpoint before it, and let that rank's device be tested"


def decided(
    doubts: Iterable[Doubt], *, sound: Collection[Rank], unsound: Collection[Rank], sealed: Collection[Rank] = ()
) -> Iterator[Doubt]:
    """Leave out who of two that differ is not to blame, where something speaks for one of them alone.

    Args:
        doubts: Of one checkpoint.
        sound: Whose file a checksum or a manifest proves.
        unsound: In whose file values are not finite, or jumped since the checkpoint before.
        sealed: Whose file a manifest proves: it knows whose it is, too.
    """
    doubts = tuple(doubts)
    tied = (doubt for doubt in doubts if doubt.kind is DoubtKind.TIED)
    whole_halves = {(doubt.others, doubt.tensors) for doubt in tied if doubt.rank in sound}
    for doubt in doubts:
        is_in_whole = doubt.kind is DoubtKind.TIED and (doubt.others, doubt.tensors) in whole_halves
        other = doubt.others[0]
        is_pair = len(doubt.others) == 1 and doubt.kind in {DoubtKind.DIFFERS, DoubtKind.STALE}
        proven = sealed if _may_be_another_file(doubt) else sound
        is_whole = doubt.rank in proven and doubt.kind is not DoubtKind.DRIFTED  # what drifted was saved as it was
        if is_whole or is_in_whole or (is_pair and other in unsound and doubt.rank not in unsound):
            continue
        is_outproven = doubt.kind is DoubtKind.TIED and any(rank in sound for rank in doubt.others)
        if is_outproven or (is_pair and (other in proven or (doubt.rank in unsound and other not in unsound))):
            yield replace(doubt, is_decided=True)
        else:
            yield doubt


def _may_be_another_file(doubt: Doubt) -> bool:
    """Tell whether a checksum in the file knows nothing of it: that says that the bytes are whole, and not whose."""
    return doubt.kind in _OF_ANOTHER_FILE or (doubt.kind is DoubtKind.ODD and len(doubt.tensors) > FEW)


def replica_findings(
    doubts: Sequence[Doubt],
    paths: Mapping[Rank, str],
    places: Mapping[tuple[Rank, str], DifferingBytes] | None = None,
    name: str | None = None,
) -> tuple[Finding, ...]:
    """Say what the replicas of a checkpoint show.

    Args:
        doubts: Of the files of one role.
        paths: Of these files.
        places: Where a rank's file differs in a tensor, as far as somebody looked.
        name: The checkpoint's; None: nobody is advised to heal it.
    """
    parted = [doubt for doubt in doubts if doubt.kind is DoubtKind.PARTED]
    findings = [_found(doubt, paths[doubt.rank], places or {}, name) for doubt in doubts if doubt not in parted]
    if parted:
        ranks = tuple(sorted({doubt.rank for doubt in parted}))
        tensors = {name for doubt in parted for name in doubt.tensors}
        message = (
            f"{on_ranks(ranks)} held the same of {counted(len(tensors), 'tensor')} at other checkpoints, and each "
            "another now: the parallel layout changed, or nobody keeps them equal any more"
        )
        findings.append(note(Code.REPLICAS_PARTED, message, path=paths[ranks[0]], tensor=min(tensors), ranks=ranks))
    return tuple(findings)


def _found(doubt: Doubt, path: str, places: Mapping[tuple[Rank, str], DifferingBytes], name: str | None) -> Finding:
    tensor = next((name for name in doubt.tensors if (doubt.rank, name) in places), doubt.tensors[0])
    place = places.get((doubt.rank, tensor))
    share = f"{len(doubt.tensors)} of {counted(doubt.compared, 'tensor')}"
    if doubt.kind is DoubtKind.ODD:
        message = (
            f"{tensor} is not what {on_ranks(doubt.others)} hold, and no other checkpoint tells whether it should be"
        )
        return note(Code.REPLICA_DIFFERS, message, path=path, tensor=tensor)
    if doubt.kind is DoubtKind.COPIED:
        message = (
            f"is in every tensor the same as {on_ranks(doubt.others)}, and at other checkpoints they differed: "
            "one is a copy of the other"
        )
        say = suspect if doubt.proof is Proof.LEARNED else note
        return say(Code.SCHEMA_DIFFERS, message, path=path, remedy=OWN_FILE)
    others = f"its {'replicas' if len(doubt.others) > 1 else 'only replica'} on {on_ranks(doubt.others)}"
    say = suspect if _severity(doubt) is Severity.SUSPECT else damage
    return say(
        _OF_KIND[doubt.kind],
        f"differs from {others} in {share}, first in {tensor}{_spelled(place)}{_why(doubt)}",
        path=path,
        tensor=tensor,
        remedy=_remedy(doubt, name),
    )


def _remedy(doubt: Doubt, name: str | None) -> str:
    if doubt.kind is DoubtKind.DRIFTED:
        return _LOOK_AT_DEVICE
    if name is None or _severity(doubt) is not Severity.DAMAGE:
        return _ANOTHER
    from shlex import quote  # most trees need none

    return f"ckpttool heal DIR --checkpoint {quote(name)} rebuilds it from a copy that is proven; or {_ANOTHER}"


def _severity(doubt: Doubt) -> Severity:
    """Weigh a doubt: damage if enough agree against one, or if something else decides."""
    if doubt.kind is DoubtKind.DRIFTED or (doubt.kind is DoubtKind.TIED and not doubt.is_decided):
        return Severity.SUSPECT
    if doubt.is_decided or doubt.as_of is not None or doubt.copy_of is not None:
        return Severity.DAMAGE
    is_sure = doubt.proof is not Proof.ONCE or (doubt.is_twin and doubt.kind is DoubtKind.DIFFERS)
    return Severity.DAMAGE if is_sure and _is_outvoted(doubt) else Severity.SUSPECT


def _is_outvoted(doubt: Doubt) -> bool:
    """Tell whether so many testify against it as are proof, or two, and these three are all the copies that there are.

    If more were saved, two may have been damaged alike, and who would bear this one out is not heard.
    """
    is_every_copy = len(doubt.others) + 1 == MIN_COPIES and not doubt.unheard and not doubt.is_of_rebuilt
    return is_every_copy or len({*doubt.others} - {*doubt.unheard}) >= MIN_COPIES


def _spelled(place: DifferingBytes | None) -> str:
    if place is None:
        return ""
    bits = "" if place.bits is None else f", {counted(place.bits, 'bit')} in all"
    last = place.end - 1
    return f" (byte {place.begin}{bits})" if last == place.begin else f" (bytes {place.begin}-{last}{bits})"


def _why(doubt: Doubt) -> str:
    if doubt.kind is DoubtKind.DRIFTED:
        since = "this checkpoint" if doubt.since is None else _named(doubt.since)
        before = "" if doubt.agreed_at is None else f"; at {_named(doubt.agreed_at)} it still agreed"
        return f", from {since} on{before}: a device computed wrongly in between, or a reduce was left out"
    if doubt.copy_of is not None:
        return f": it is what rank {doubt.copy_of} holds"
    if doubt.as_of is not None:
        return f": it is this rank's own of {doubt.as_of}, an older file under a newer name"
    if doubt.kind is DoubtKind.STALE:
        return ": another run's file under this name, or a device that computed wrongly"
    if doubt.kind is DoubtKind.TIED and not doubt.is_decided:
        return ", and as many hold what it holds: nothing tells who is right"
    return "" if doubt.is_decided or _is_outvoted(doubt) else _too_few(doubt)


def _too_few(doubt: Doubt) -> str:
    if len(doubt.others) == 1:
        return ": one of the two is damaged"
    heard = len({*doubt.others} - {*doubt.unheard})
    if heard == len(doubt.others):
        return f", and only {heard} agree: nothing proves that they are right"
    return f", and of these only {heard} {'is' if heard == 1 else 'are'} whole: nothing proves what is right"


def _named(saved: SavedAt) -> str:
    return f"{saved.name} ({at_step(saved.step)})"
