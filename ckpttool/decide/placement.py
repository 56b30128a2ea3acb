"""Does each rank's file lie where that rank will start?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from shlex import quote

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Code, Finding, damage, note, suspect
from ckpttool.domain.frozen import dataclass, replace
from ckpttool.domain.merge import Merge
from ckpttool.domain.placement import Home, Placed
from ckpttool.domain.plan import ResumePlan
from ckpttool.domain.shard import Shard
from ckpttool.domain.units import Rank, on_ranks


def with_placement(plan: ResumePlan, merge: Merge) -> ResumePlan:
    """Add to a plan which ranks start where, as the machines that looked said, and what speaks against it."""
    files: list[set[str]] = [set() for _ in merge.seats]
    for path, seats in merge.held.items():
        for at in seats:
            files[at].add(path)
    homes = [
        Home(host=seat.host, root=seat.absolute or seat.root, shared=seat.shared, claims=seat.claims, files=own)
        for seat, own in zip(merge.seats, files, strict=True)
    ]
    found = placement_of(plan.point.checkpoint, homes)
    return replace(plan, placement=found.placed, findings=(*found.findings, *plan.findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which ranks start where, and what speaks against it."""

    placed: tuple[Placed, ...]
    """By the first rank; empty where no machine said which ranks start there."""
    findings: tuple[Finding, ...]


def placement_of(checkpoint: Checkpoint, homes: Sequence[Home]) -> Placement:
    """Say for each rank of a save where it starts, and whether its files lie there.

    Args:
        checkpoint: What is to be loaded.
        homes: What each machine has and which ranks it claims, in any order.
    """
    homes = sorted(homes, key=lambda home: (home.host, home.root))
    if all(home.claims is None for home in homes):
        return Placement(placed=(), findings=())
    shards: defaultdict[Rank, list[Shard]] = defaultdict(list)
    for shard in checkpoint.shards:
        if shard.rank is not None:
            shards[shard.rank].append(shard)
    starts = {rank: [home for home in homes if _claims(home, rank)] for rank in sorted(shards)}
    return Placement(placed=_placed(starts), findings=(*_claimed_badly(starts), *_elsewhere(shards, starts, homes)))


def _claims(home: Home, rank: Rank) -> bool:
    return home.claims is not None and rank in home.claims


def _placed(starts: Mapping[Rank, Sequence[Home]]) -> tuple[Placed, ...]:
    ranks: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank, homes in starts.items():
        if len(_hosts(homes)) == 1:
            ranks[homes[0].host].append(rank)
    placed = [Placed(ranks=tuple(own), host=host) for host, own in ranks.items()]
    return tuple(sorted(placed, key=lambda one: one.ranks))


def _claimed_badly(starts: Mapping[Rank, Sequence[Home]]) -> list[Finding]:
    """Say which ranks nobody starts, and which several machines would."""
    found = []
    unclaimed = [rank for rank, homes in starts.items() if not homes]
    if unclaimed:
        message = (
            f"no machine says that {on_ranks(unclaimed)} will start there: nobody knows whether the files lie right"
        )
        remedy = "say --ranks A-B or --devices-per-node D to ckpttool part on every machine"
        found.append(note(Code.SHARD_ELSEWHERE, message, remedy=remedy, ranks=tuple(unclaimed)))
    twice: defaultdict[tuple[str, ...], list[Rank]] = defaultdict(list)
    for rank, homes in starts.items():
        if len(_hosts(homes)) > 1:
            twice[_hosts(homes)].append(rank)
    for hosts, ranks in sorted(twice.items()):
        message = f"{' and '.join(hosts)} each say that {on_ranks(ranks)} will start there"
        remedy = "a rank starts once: give every machine ranks of its own with --ranks A-B"
        found.append(suspect(Code.SHARD_ELSEWHERE, message, remedy=remedy, ranks=tuple(ranks)))
    return found


def _elsewhere(
    shards: Mapping[Rank, Sequence[Shard]], starts: Mapping[Rank, Sequence[Home]], homes: Sequence[Home]
) -> list[Finding]:
    """Name each rank whose files lie on another machine alone, and the command that brings them."""
    found = []
    for rank, claimers in starts.items():
        if len(_hosts(claimers)) != 1:
            continue
        lacking: defaultdict[str, list[str]] = defaultdict(list)
        by_host: dict[str, Home] = {}
        for shard in shards[rank]:
            holders = [home for home in homes if shard.path in home.files]
            if not holders or any(home.shared or home.host == claimers[0].host for home in holders):
                continue  # nobody has it: that it is missing is said elsewhere
            lacking[holders[0].host].append(shard.path)
            by_host.setdefault(holders[0].host, holders[0])
        for host, paths in lacking.items():
            home, here = by_host[host], claimers[0]
            found.append(
                damage(
                    Code.SHARD_ELSEWHERE,
                    f"rank {rank} will start on {here.host}, which has no file of it: that lies on {host}",
                    path=paths[0],
                    expected=here.host,
                    actual=host,
                    remedy=f"on {quote(here.host)}: {_rsync(home, here, paths)}",
                    ranks=(rank,),
                )
            )
    return found


def _rsync(source: Home, target: Home, paths: Sequence[str]) -> str:
    """Spell the command that brings files to the same places below another folder, whatever their names hold."""
    hosts = [source.host, *[""] * (len(paths) - 1)]  # that of the first source is that of all
    words = [f"{host}:{source.root}/./{path}" for host, path in zip(hosts, paths, strict=True)]
    return f"rsync -asR -- {' '.join(map(quote, words))} {quote(target.root + '/')}"


def _hosts(homes: Sequence[Home]) -> tuple[str, ...]:
    return tuple(sorted({home.host for home in homes}))
