"""What is said of files that are not what their replicas hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, Severity, damage, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import Proof, SavedAt
from ckpttool.core.domain.units import Rank, at_step, counted, on_ranks
from ckpttool.core.domain.verdict import MIN_COPIES
from ckpttool.replicas.comparing.model import FEW, DifferingBytes, Suspicion, SuspicionKind

_OF_KIND = {
    SuspicionKind.OUTLIER: Code.REPLICA_DIFFERS,
    SuspicionKind.DIFFERS: Code.REPLICA_DIFFERS,
    SuspicionKind.TIED: Code.REPLICA_DIFFERS,
    SuspicionKind.STALE: Code.REPLICA_STALE,
    SuspicionKind.DRIFTED: Code.REPLICA_DRIFTED,
}

_OF_ANOTHER_FILE = frozenset({SuspicionKind.STALE, SuspicionKind.COPIED, SuspicionKind.PARTED})

_ANOTHER = "resume from another checkpoint"
_LOOK_AT_DEVICE = "resume from a checkpoint before it, and let that rank's device be tested"


def decided(
    doubts: Iterable[Suspicion], *, sound: Collection[Rank], unsound: Collection[Rank], sealed: Collection[Rank] = ()
) -> Iterator[Suspicion]:
    """Leave out who of two that differ is not to blame, where something speaks for one of them alone.

    Args:
        doubts: Of one checkpoint.
        sound: Whose file a checksum or a manifest proves.
        unsound: In whose file values are not finite, or jumped since the checkpoint before.
        sealed: Whose file a manifest proves: it knows whose it is, too.
    """
    doubts = tuple(doubts)
    tied = (suspicion for suspicion in doubts if suspicion.kind is SuspicionKind.TIED)
    whole_halves = {(suspicion.replicas, suspicion.tensors) for suspicion in tied if suspicion.rank in sound}
    for suspicion in doubts:
        is_in_whole = suspicion.kind is SuspicionKind.TIED and (suspicion.replicas, suspicion.tensors) in whole_halves
        peer_rank = suspicion.replicas[0]
        is_pair = len(suspicion.replicas) == 1 and suspicion.kind in {SuspicionKind.DIFFERS, SuspicionKind.STALE}
        proven = sealed if _may_be_another_file(suspicion) else sound
        is_whole = (
            suspicion.rank in proven and suspicion.kind is not SuspicionKind.DRIFTED
        )  # what drifted was saved as it was
        if is_whole or is_in_whole or (is_pair and peer_rank in unsound and suspicion.rank not in unsound):
            continue
        is_outproven = suspicion.kind is SuspicionKind.TIED and any(rank in sound for rank in suspicion.replicas)
        if is_outproven or (
            is_pair and (peer_rank in proven or (suspicion.rank in unsound and peer_rank not in unsound))
        ):
            yield replace(suspicion, is_decided=True)
        else:
            yield suspicion


def _may_be_another_file(suspicion: Suspicion) -> bool:
    """Tell whether a checksum in the file knows nothing of it: that says that the bytes are whole, and not whose."""
    return suspicion.kind in _OF_ANOTHER_FILE or (
        suspicion.kind is SuspicionKind.OUTLIER and len(suspicion.tensors) > FEW
    )


def replica_findings(
    doubts: Sequence[Suspicion],
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
    parted = [suspicion for suspicion in doubts if suspicion.kind is SuspicionKind.PARTED]
    findings = [
        _finding(suspicion, paths[suspicion.rank], places or {}, name)
        for suspicion in doubts
        if suspicion not in parted
    ]
    if parted:
        ranks = tuple(sorted({suspicion.rank for suspicion in parted}))
        tensors = {name for suspicion in parted for name in suspicion.tensors}
        message = (
            f"{on_ranks(ranks)} held the same of {counted(len(tensors), 'tensor')} at other checkpoints, and each "
            "another now: the parallel layout changed, or nobody keeps them equal any more"
        )
        findings.append(note(Code.REPLICAS_PARTED, message, path=paths[ranks[0]], tensor=min(tensors), ranks=ranks))
    return tuple(findings)


def _finding(
    suspicion: Suspicion, path: str, places: Mapping[tuple[Rank, str], DifferingBytes], name: str | None
) -> Finding:
    tensor = next((name for name in suspicion.tensors if (suspicion.rank, name) in places), suspicion.tensors[0])
    place = places.get((suspicion.rank, tensor))
    share = f"{len(suspicion.tensors)} of {counted(suspicion.compared, 'tensor')}"
    if suspicion.kind is SuspicionKind.OUTLIER:
        message = (
            f"{tensor} is not what {on_ranks(suspicion.replicas)} hold, and no other checkpoint tells whether it "
            "should be"
        )
        return note(Code.REPLICA_DIFFERS, message, path=path, tensor=tensor)
    if suspicion.kind is SuspicionKind.COPIED:
        message = (
            f"is in every tensor the same as {on_ranks(suspicion.replicas)}, and at other checkpoints they differed: "
            "one is a copy of the other"
        )
        say = suspect if suspicion.proof is Proof.LEARNED else note
        return say(Code.SCHEMA_DIFFERS, message, path=path, remedy=OWN_FILE)
    replicas = f"its {'replicas' if len(suspicion.replicas) > 1 else 'only replica'} on {on_ranks(suspicion.replicas)}"
    say = suspect if _severity(suspicion) is Severity.SUSPECT else damage
    return say(
        _OF_KIND[suspicion.kind],
        f"differs from {replicas} in {share}, first in {tensor}{_place_text(place)}{_why(suspicion)}",
        path=path,
        tensor=tensor,
        remedy=_remedy(suspicion, name),
    )


def _remedy(suspicion: Suspicion, name: str | None) -> str:
    if suspicion.kind is SuspicionKind.DRIFTED:
        return _LOOK_AT_DEVICE
    if name is None or _severity(suspicion) is not Severity.DAMAGE:
        return _ANOTHER
    from shlex import quote  # most trees need none

    return f"ckpttool heal DIR --checkpoint {quote(name)} rebuilds it from a copy that is proven; or {_ANOTHER}"


def _severity(suspicion: Suspicion) -> Severity:
    """Weigh a doubt: damage if enough agree against one, or if something else decides."""
    if suspicion.kind is SuspicionKind.DRIFTED or (suspicion.kind is SuspicionKind.TIED and not suspicion.is_decided):
        return Severity.SUSPECT
    if suspicion.is_decided or suspicion.as_of is not None or suspicion.copy_of is not None:
        return Severity.DAMAGE
    is_sure = suspicion.proof is not Proof.ONCE or (suspicion.is_twin and suspicion.kind is SuspicionKind.DIFFERS)
    return Severity.DAMAGE if is_sure and _is_outvoted(suspicion) else Severity.SUSPECT


def _is_outvoted(suspicion: Suspicion) -> bool:
    """Tell whether so many testify against it as are proof, or two, and these three are all the copies that there are.

    If more were saved, two may have been damaged alike, and who would bear this one out is not heard.
    """
    is_every_copy = len(suspicion.replicas) + 1 == MIN_COPIES and not suspicion.unheard and not suspicion.is_of_rebuilt
    return is_every_copy or len({*suspicion.replicas} - {*suspicion.unheard}) >= MIN_COPIES


def _place_text(place: DifferingBytes | None) -> str:
    if place is None:
        return ""
    bits = "" if place.bits is None else f", {counted(place.bits, 'bit')} in all"
    last = place.end - 1
    return f" (byte {place.begin}{bits})" if last == place.begin else f" (bytes {place.begin}-{last}{bits})"


def _why(suspicion: Suspicion) -> str:
    if suspicion.kind is SuspicionKind.DRIFTED:
        since = "this checkpoint" if suspicion.since is None else _named(suspicion.since)
        before = "" if suspicion.agreed_at is None else f"; at {_named(suspicion.agreed_at)} it still agreed"
        return f", from {since} on{before}: a device computed wrongly in between, or a reduce was left out"
    if suspicion.copy_of is not None:
        return f": it is what rank {suspicion.copy_of} holds"
    if suspicion.as_of is not None:
        return f": it is this rank's own of {suspicion.as_of}, an older file under a newer name"
    if suspicion.kind is SuspicionKind.STALE:
        return ": another run's file under this name, or a device that computed wrongly"
    if suspicion.kind is SuspicionKind.TIED and not suspicion.is_decided:
        return ", and as many hold what it holds: nothing tells who is right"
    return "" if suspicion.is_decided or _is_outvoted(suspicion) else _too_few(suspicion)


def _too_few(suspicion: Suspicion) -> str:
    if len(suspicion.replicas) == 1:
        return ": one of the two is damaged"
    heard = len({*suspicion.replicas} - {*suspicion.unheard})
    if heard == len(suspicion.replicas):
        return f", and only {heard} agree: nothing proves that they are right"
    return f", and of these only {heard} {'is' if heard == 1 else 'are'} whole: nothing proves what is right"


def _named(saved: SavedAt) -> str:
    return f"{saved.name} ({at_step(saved.step)})"
