"""How much a suspicion weighs, and which file is to blame.

Every row below is a checkpoint, and a test builds each of them:

- copies: the contents of the tensor on ranks 0, 1, 2, …; a dot is a missing file
- tensors: whether the copies differ in one tensor or in most
- source: the proof that these ranks are replicas: the trainer's record, or other checkpoints of the run at which all
  ranks were equal, and between which they changed
- evidence: facts about a rank's file: it has a matching `checksum`, or the manifest has its `seal`; the norm of a
  tensor has a `jump`; it is `damaged` on its own; it was `healed` from rank 0; it has the tensors of an `older`
  checkpoint; it also differs at a `later` one
- finding, weight, blamed: the reported finding, its severity, and its ranks
- donor: the rank from which `ckpttool repair shards` rebuilds the first missing or damaged file; "-" if there is no
  such file

============= ======= ======= ====================== =============== ======= ======= =====
copies        tensors source  evidence               finding         weight  blamed  donor
============= ======= ======= ====================== =============== ======= ======= =====
A A           one     2 saves -                      -               -       -       -
A B           one     nothing -                      -               -       -       -
A B           one     record  -                      replica-differs suspect 0 1     -
A B           one     2 saves -                      replica-differs suspect 0 1     -
A B           one     1 save  -                      replica-differs suspect 0 1     -
A B           most    2 saves -                      replica-stale   suspect 0 1     -
A B           most    1 save  -                      replicas-parted note    0 1     -
A B           one     2 saves checksum 0             replica-differs damage  1       0
A B           one     2 saves seal 0                 replica-differs damage  1       0
A B           most    2 saves checksum 0             replica-stale   suspect 0 1     -
A B           most    2 saves seal 0                 replica-stale   damage  1       0
A B           one     2 saves jump 1                 replica-differs damage  1       0
A B           one     2 saves jump 0, jump 1         replica-differs suspect 0 1     -
A B           one     2 saves damaged 1              -               -       -       0
A B           most    2 saves older 1                replica-stale   damage  1       0
A B           one     2 saves later 1                replica-drifted suspect 0 1     -

A A A         one     2 saves -                      -               -       -       -
A A B         one     nothing -                      replica-differs note    2       -
A A B         one     record  -                      replica-differs damage  2       0
A A B         one     2 saves -                      replica-differs damage  2       0
A A B         one     1 save  -                      replica-differs damage  2       0
A A B         most    2 saves -                      replica-stale   damage  2       0
A A B         most    1 save  -                      replica-stale   suspect 2       -
A A B         most    1 save  older 2                replica-stale   damage  2       none
A A B         one     2 saves checksum 2             -               -       -       -
A A B         most    2 saves checksum 2             replica-stale   suspect 2       -
A A B         most    2 saves checksum 0, checksum 2 replica-stale   suspect 2       -
A A B         most    2 saves seal 2                 -               -       -       -
A A B         one     2 saves damaged 1              replica-differs suspect 2       none
A A B         one     2 saves healed 1               replica-differs suspect 0 1 2   -
A A B         one     2 saves later 2                replica-drifted suspect 2       -
A A B         one     2 saves later 2, checksum 2    replica-drifted suspect 2       -
A A B         one     record  later 2                -               -       -       -
A A B .       one     record  -                      replica-differs suspect 2       none
A A B .       one     2 saves -                      replica-differs suspect 2       none
A B C         one     record  -                      replicas-parted note    0 1 2   -
A B C         one     2 saves -                      replicas-parted note    0 1 2   -

A A A B       one     nothing -                      replica-differs note    3       -
A A A B       one     2 saves -                      replica-differs damage  3       0
A A A B       one     2 saves damaged 0              replica-differs suspect 3       none
A A A B .     one     2 saves -                      replica-differs damage  3       0
A A A B .     one     2 saves damaged 0              replica-differs suspect 3       none
A A B B       one     2 saves -                      replica-differs suspect 0 1 2 3 -
A A B B       one     2 saves checksum 0             replica-differs damage  2 3     0
A A B B       one     2 saves checksum 0, checksum 2 -               -       -       -
A A B B       most    2 saves -                      replicas-parted note    0 1 2 3 -
A A B B       most    record  -                      replica-differs suspect 0 1 2 3 -
A A B B       most    2 saves older 2, older 3       replica-stale   damage  2 3     0
A A B C       one     2 saves -                      replica-differs suspect 2 3     -
A A B C       one     record  -                      replicas-parted note    0 1 2 3 -
A A A A B B   one     2 saves -                      replica-differs damage  4 5     0
A A A A B C D one     2 saves -                      replicas-parted note    4 5 6   -

A .           one     nothing -                      -               -       -       none
A .           one     record  -                      -               -       -       0
A .           one     2 saves -                      -               -       -       0
A .           one     1 save  -                      -               -       -       none
A B .         one     2 saves -                      replica-differs suspect 0 1     none
A B .         one     2 saves checksum 0             replica-differs damage  1       0
A A .         one     2 saves -                      -               -       -       0
A A . .       one     2 saves -                      -               -       -       0
============= ======= ======= ====================== =============== ======= ======= =====

A checksum inside a file proves its bytes, but not its rank. Only a manifest proves that. So a checksum does not clear a
file that differs in most tensors, because it may be another rank's file; and two copies, or copies without a checksum,
do not prove it damaged. A drifted file was already saved that way, so neither a checksum nor a manifest clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import Proof
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import MIN_COPIES
from ckpttool.replicas.comparing.model import FEW, Suspicion, SuspicionKind

_OF_ONE_FILE = frozenset({SuspicionKind.DIFFERS, SuspicionKind.STALE})
_OF_ANOTHER_FILE = frozenset({SuspicionKind.STALE, SuspicionKind.COPIED, SuspicionKind.PARTED})

_ALWAYS = {
    SuspicionKind.OUTLIER: Severity.NOTE,
    SuspicionKind.PARTED: Severity.NOTE,
    SuspicionKind.DRIFTED: Severity.SUSPECT,
}
"""Severity of some kinds, regardless of evidence."""


class Evidence(NamedTuple):
    """Evidence for or against files, besides the copies."""

    sound: AbstractSet[Rank] = frozenset()
    """Ranks with a file whose bytes are proven by a checksum or a manifest."""
    sealed: Collection[Rank] = ()
    """Ranks with a file whose bytes and rank are proven by a manifest."""
    unsound: Collection[Rank] = ()
    """Ranks with values that are not finite, or that jumped since the previous checkpoint."""


def without_cleared(suspicions: Iterable[Suspicion], evidence: Evidence) -> Iterator[Suspicion]:
    """Drop the files that the evidence clears, and mark those that it confirms."""
    suspicions = tuple(suspicions)
    sound_halves = {
        (suspicion.replicas, suspicion.tensors)
        for suspicion in suspicions
        if suspicion.kind is SuspicionKind.TIED and suspicion.rank in evidence.sound
    }
    for suspicion in suspicions:
        is_to_blame = _is_to_blame(suspicion, evidence, sound_halves)
        if is_to_blame:
            yield replace(suspicion, is_decided=True)
        elif is_to_blame is None:
            is_refuted = not evidence.sound.isdisjoint(suspicion.replicas) and len(suspicion.replicas) >= MIN_COPIES
            yield replace(suspicion, may_be_right=suspicion.rank in evidence.sound and not is_refuted)


def _is_to_blame(
    suspicion: Suspicion, evidence: Evidence, sound_halves: Collection[tuple[tuple[Rank, ...], tuple[str, ...]]]
) -> bool | None:
    """Return whether the evidence confirms (True) or clears (False) a suspicion, or None if it does neither."""
    rank, kind = suspicion.rank, suspicion.kind
    may_be_another_file = kind in _OF_ANOTHER_FILE or (kind is SuspicionKind.OUTLIER and len(suspicion.tensors) > FEW)
    proven = evidence.sealed if may_be_another_file else evidence.sound
    if rank in proven and kind is not SuspicionKind.DRIFTED:
        return False
    if kind is SuspicionKind.TIED:
        if (suspicion.replicas, suspicion.tensors) in sound_halves:
            return False
        return True if any(peer in evidence.sound for peer in suspicion.replicas) else None
    if kind not in _OF_ONE_FILE or len(suspicion.replicas) > 1:
        return None
    (peer,) = suspicion.replicas
    if (rank in evidence.unsound) != (peer in evidence.unsound):
        return rank in evidence.unsound
    return True if peer in proven else None


def severity(suspicion: Suspicion) -> Severity:
    """Weigh a suspicion: damage if enough copies agree against the file, or if other evidence decides."""
    kind = suspicion.kind
    if kind in _ALWAYS:
        return _ALWAYS[kind]
    if kind is SuspicionKind.COPIED:
        return Severity.SUSPECT if suspicion.proof is Proof.LEARNED else Severity.NOTE
    if suspicion.is_decided:
        return Severity.DAMAGE
    if kind is SuspicionKind.TIED:
        return Severity.SUSPECT
    is_known_file = suspicion.as_of is not None or suspicion.copy_of is not None
    # At one other checkpoint slices may have been equal by coincidence, but not in all tensors of files that still
    # agree.
    agree_otherwise = kind is SuspicionKind.DIFFERS and 2 * len(suspicion.tensors) < suspicion.compared
    is_replica = suspicion.proof is not Proof.ONCE or (suspicion.is_twin and agree_otherwise)
    if is_known_file or (is_replica and not suspicion.may_be_right and is_outvoted(suspicion)):
        return Severity.DAMAGE
    return Severity.SUSPECT


def is_outvoted(suspicion: Suspicion) -> bool:
    """Return whether three copies agree against a file, or both other copies if only three were ever saved.

    If more were saved, two may have the same damage, and the missing copy might have agreed with this file.
    """
    is_every_copy = len(suspicion.replicas) + 1 == MIN_COPIES and not suspicion.unheard and not suspicion.is_of_rebuilt
    return is_every_copy or len({*suspicion.replicas} - {*suspicion.unheard}) >= MIN_COPIES
