"""Findings about files that differ from their replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpttool.core.domain.finding import OWN_FILE, Code, Finding, Severity, damage, note, suspect
from ckpttool.core.domain.replicas import SavedAt
from ckpttool.core.domain.units import Rank, at_step, counted, on_ranks
from ckpttool.replicas.comparing.model import DifferingBytes, Suspicion, SuspicionKind
from ckpttool.replicas.comparing.weight import is_outvoted, severity
from ckpttool.replicas.findings import ReplicasCode

_OF_KIND = {
    SuspicionKind.OUTLIER: Code.REPLICA_DIFFERS,
    SuspicionKind.DIFFERS: Code.REPLICA_DIFFERS,
    SuspicionKind.TIED: Code.REPLICA_DIFFERS,
    SuspicionKind.STALE: Code.REPLICA_STALE,
    SuspicionKind.DRIFTED: Code.REPLICA_DRIFTED,
}

_ANOTHER = "resume from another checkpoint"
_LOOK_AT_DEVICE = "resume from an earlier checkpoint, and have that rank's device tested"


def replica_findings(
    suspicions: Sequence[Suspicion],
    paths: Mapping[Rank, str],
    places: Mapping[tuple[Rank, str], DifferingBytes] | None = None,
) -> tuple[Finding, ...]:
    """Report the results of comparing a checkpoint's replicas.

    Args:
        suspicions: The suspicions about files of one role.
        paths: The paths of these files.
        places: The first difference of a rank's file in a tensor, if it was searched for.
    """
    parted = [suspicion for suspicion in suspicions if suspicion.kind is SuspicionKind.PARTED]
    findings = [
        _finding(suspicion, paths[suspicion.rank], places or {}) for suspicion in suspicions if suspicion not in parted
    ]
    if parted:
        ranks = tuple(sorted({suspicion.rank for suspicion in parted}))
        tensors = {name for suspicion in parted for name in suspicion.tensors}
        message = (
            f"{on_ranks(ranks)} had {counted(len(tensors), 'equal tensor')} at other checkpoints, and all of them "
            f"differ now: the parallel layout changed, or the ranks are no longer kept equal"
        )
        findings.append(
            note(ReplicasCode.REPLICAS_PARTED, message, path=paths[ranks[0]], tensor=min(tensors), ranks=ranks)
        )
    return tuple(findings)


def _finding(suspicion: Suspicion, path: str, places: Mapping[tuple[Rank, str], DifferingBytes]) -> Finding:
    tensor = next((name for name in suspicion.tensors if (suspicion.rank, name) in places), suspicion.tensors[0])
    place = places.get((suspicion.rank, tensor))
    share = f"{len(suspicion.tensors)} of {counted(suspicion.compared, 'tensor')}"
    if suspicion.kind is SuspicionKind.OUTLIER:
        message = (
            f"{tensor} differs from {on_ranks(suspicion.replicas)}, and no other checkpoint shows whether they "
            f"should be equal"
        )
        return note(Code.REPLICA_DIFFERS, message, path=path, tensor=tensor)
    if suspicion.kind is SuspicionKind.COPIED:
        message = (
            f"equals {on_ranks(suspicion.replicas)} in every tensor, but at other checkpoints they differed: one "
            f"is a copy of the other"
        )
        say = suspect if severity(suspicion) is Severity.SUSPECT else note
        return say(Code.SCHEMA_DIFFERS, message, path=path, remedy=OWN_FILE)
    replicas = f"its {'replicas' if len(suspicion.replicas) > 1 else 'only replica'} on {on_ranks(suspicion.replicas)}"
    say = suspect if severity(suspicion) is Severity.SUSPECT else damage
    return say(
        _OF_KIND[suspicion.kind],
        f"differs from {replicas} in {share}, first in {tensor}{_place_text(place)}{_why(suspicion)}",
        path=path,
        tensor=tensor,
        remedy=_LOOK_AT_DEVICE if suspicion.kind is SuspicionKind.DRIFTED else _ANOTHER,
    )


def _place_text(place: DifferingBytes | None) -> str:
    if place is None:
        return ""
    bits = "" if place.bits is None else f", {counted(place.bits, 'bit')} in all"
    last = place.end - 1
    return f" (byte {place.begin}{bits})" if last == place.begin else f" (bytes {place.begin}-{last}{bits})"


def _why(suspicion: Suspicion) -> str:
    if suspicion.kind is SuspicionKind.DRIFTED:
        since = "this checkpoint" if suspicion.since is None else _named(suspicion.since)
        before = "" if suspicion.agreed_at is None else f"; at {_named(suspicion.agreed_at)} they still agreed"
        return (
            f", from {since} on{before}: a device computed wrong values in between, or a gradient was not reduced "
            "over all ranks"
        )
    if suspicion.copy_of is not None:
        return f": it equals rank {suspicion.copy_of}"
    if suspicion.as_of is not None:
        return f": it equals this rank's file of {suspicion.as_of}, so it is an older file under a newer name"
    if suspicion.kind is SuspicionKind.STALE and not suspicion.may_be_right:
        return ": it is another run's file under this name, or a device computed wrong values"
    if suspicion.kind is SuspicionKind.TIED and not suspicion.is_decided:
        return ", and as many ranks agree with it: there is no evidence which is right"
    return "" if suspicion.is_decided or severity(suspicion) is Severity.DAMAGE else _too_few(suspicion)


def _too_few(suspicion: Suspicion) -> str:
    if is_outvoted(suspicion):
        return ": there is no proof which copy is right"
    if len(suspicion.replicas) == 1:
        return ": one of the two is damaged"
    heard = len({*suspicion.replicas} - {*suspicion.unheard})
    if heard == len(suspicion.replicas):
        return f", and only {heard} of them agree: there is no proof that they are right"
    return f", and only {heard} of these {'is' if heard == 1 else 'are'} intact: there is no proof which is right"


def _named(saved: SavedAt) -> str:
    return f"{saved.name} ({at_step(saved.step)})"
