"""Are all ranks there? First: which ranks must there be?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from ckpttool.decide.recorded_files import with_recorded
from ckpttool.domain.checkpoint import Checkpoint, Inventory, LayoutName, RunSummary, Topology
from ckpttool.domain.finding import Code, Finding, Severity, in_order
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.remedies import helped
from ckpttool.domain.shard import Shard, ShardRole
from ckpttool.domain.units import MAX_RANKS, EpochStep, Rank
from ckpttool.errors import UsageError
from ckpttool.trainers.mindformers.layouts.misplaced import Misplaced, misplaced_shards, ranks_found_elsewhere

MOST_NAMED = 4096
"""Missing files of a checkpoint that get a finding each; the rest is one number."""

_RESTORE = "restore it from that rank's disk, or resume from an older checkpoint; --world-size corrects the count"

_RESTORE_ROLE = "restore it from the disk that the rank saved to, or resume from an older checkpoint"
_START_FEWER = "restore it, or start as many devices as there are ranks whose files are whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEvidence:
    """Somebody else's word about how many ranks the training had."""

    world_size: int
    source: str
    """In words that finish the sentence 'expected N ranks because …'."""
    declared: bool
    """True for the user or a config, who are believed; False for leftovers, which are weighed."""
    confirms: bool = False
    """Instead of all that: it may start another size than was saved, and only settles a doubt about a run of its own
    size. So speaks a config with `auto_trans_ckpt`."""
    at_least: bool = False
    """Besides, each of these ranks will load a file of its own, so that one below this number must not be missing,
    while more do no harm. So speak the devices of a data-parallel start."""


class _Size(NamedTuple):
    """How many ranks are expected."""

    world: int
    why: str
    remedy: str = _RESTORE


class _Waiting(NamedTuple):
    """Ranks that have a folder, but no checkpoint of any run in it."""

    size: _Size
    """What they speak for."""
    empty: frozenset[int]
    """Those whose folder can be listed."""


class _Shown(NamedTuple):
    """What a tree shows of ranks beyond those that have shards in their own folders."""

    waiting: _Waiting | None
    elsewhere: Mapping[tuple[str, int], Misplaced]
    """By run: the shard of its highest rank that lies in another rank's folder."""


def expect_ranks(
    inventory: Inventory, evidence: Sequence[WorldEvidence] = (), *, weights_alone: bool = False
) -> Inventory:
    """Say for every checkpoint how many ranks it must have, and which are missing.

    Args:
        inventory: As scanned.
        evidence: From `--world-size`, a config, or strategy files.
        weights_alone: Whether a config says that the newer layout is saved without optimizer state: then it lacks none.

    Returns:
        The same tree; each checkpoint has a world size, and a finding for each file that is not there.

    Raises:
        UsageError: Somebody speaks of more ranks than any training has.
    """
    for one in evidence:
        if one.world_size > MAX_RANKS:
            raise UsageError(f"{one.world_size} ranks, for {one.source}: more ranks than any training has")
    if inventory.layout in {LayoutName.MINDFORMERS_UNIFIED, LayoutName.LOOSE_FILE}:
        return replace(inventory, checkpoints=tuple(with_recorded(one) for one in inventory.checkpoints))
    if inventory.layout is LayoutName.MINDFORMERS_ITERATION:
        seen = {shard.role for checkpoint in inventory.checkpoints for shard in checkpoint.shards}
        roles = {ShardRole.MODEL} if weights_alone else {ShardRole.MODEL, *seen}
        checkpoints = tuple(_iteration(checkpoint, evidence, roles) for checkpoint in inventory.checkpoints)
        return replace(inventory, checkpoints=checkpoints)
    misplaced = misplaced_shards(inventory)
    shown = _Shown(_folders_without_checkpoint(inventory), ranks_found_elsewhere(inventory, misplaced))
    runs = tuple(_expected_of_run(run, inventory.runs, evidence, shown) for run in inventory.runs)
    sizes = {(run.prefix, run.run): size for run, size in runs}
    unproven = _unproven_shrinks(inventory, tuple(run for run, _ in runs), evidence)
    checkpoints = tuple(
        _rank_layout(one, inventory, sizes[one.prefix, one.run], unproven.get((one.prefix, one.run), ()), misplaced)
        for one in inventory.checkpoints
    )
    notes = _shrink_notes(tuple(run for run, _ in runs), evidence, unproven)
    return replace(
        inventory,
        checkpoints=checkpoints,
        runs=tuple(run for run, _ in runs),
        findings=in_order((*inventory.findings, *notes)),
    )


def mark_empty(inventory: Inventory) -> Inventory:
    """Report shards that have no bytes, where the listing took sizes: the commonest trace of a power cut."""
    return replace(inventory, checkpoints=tuple(_with_empty(one) for one in inventory.checkpoints))


def _with_empty(checkpoint: Checkpoint) -> Checkpoint:
    findings = tuple(
        helped(
            Finding(
                code=Code.SHARD_EMPTY,
                severity=Severity.DAMAGE,
                message="the file has no bytes",
                path=shard.path,
                ranks=() if shard.rank is None else (shard.rank,),
            )
        )
        for shard in checkpoint.shards
        if shard.stamp is not None and shard.stamp.size == 0
    )
    return replace(checkpoint, findings=(*checkpoint.findings, *findings)) if findings else checkpoint


def _folders_without_checkpoint(inventory: Inventory) -> _Waiting | None:
    """Return the world size that folders speak for in which no run left a checkpoint: emptied, or unreadable.

    MindFormers makes a rank's folder when the rank starts, so each is a rank that trained here; no leftover of an
    older, larger run looks like that, since such a run left files.
    """
    filled = {shard.rank for checkpoint in inventory.checkpoints for shard in checkpoint.shards}
    waiting = [rank for rank in inventory.folder_ranks if rank not in filled]
    if not waiting:
        return None
    last = max(waiting)
    what = "cannot be listed" if last in inventory.unreadable_ranks else "holds no checkpoint of any run"
    size = _Size(last + 1, f"there is a folder rank_{last}, which {what}")
    return _Waiting(size, frozenset(waiting) - frozenset(inventory.unreadable_ranks))


def _own_size(run: RunSummary, runs: Sequence[RunSummary], shown: _Shown) -> _Size:
    """Count the ranks by what the run's own files and the empty folders show."""
    own, waiting = run.world_size, shown.waiting
    gathered = shown.elsewhere.get((run.prefix, run.run))
    if gathered is not None and gathered.rank >= max(own, waiting.size.world if waiting else 0):
        folder = gathered.path.partition("/")[0]
        return _Size(gathered.rank + 1, f"{folder} holds a file of rank {gathered.rank}")
    has_grown = any(later.prefix == run.prefix and later.run > run.run and later.world_size > own for later in runs)
    if waiting is None or waiting.size.world <= own or has_grown:  # the folder came with the growth
        return _Size(own, f"its highest rank is {own - 1}")
    world, why, _ = waiting.size
    if world % own or not waiting.empty.issuperset(range(own, world)):
        return waiting.size
    why += f"; either {world - own} ranks lost their files, or the training grew to {world} and saved nothing since"
    remedy = f"pass --world-size {own} if the training had grown and stopped before its first save; else restore them"
    return _Size(world, why, remedy)


def _expected_of_run(
    run: RunSummary, runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence], shown: _Shown
) -> tuple[RunSummary, _Size]:
    """Weigh what speaks for a larger world than the run's own files show.

    A run on a whole fraction of another run's ranks is a training that went on smaller or larger. Any other
    difference (3 of 4, 7 of 8, 1 of many) is a rank folder that got lost, and unknown is never good.
    """
    for one in evidence:
        if one.declared:
            return replace(run, world_size=one.world_size), _Size(one.world_size, one.source)
    own = _own_size(run, runs, shown)
    worlds = [_own_size(other, runs, shown).world for other in runs]
    others = [_Size(world, f"another run of this tree had {world}") for world in worlds]
    others += [_Size(one.world_size, one.source) for one in evidence if not one.confirms]
    larger = [one for one in others if one.world > own.world and (one.world % own.world or own.world == 1)]
    needed = [_Size(one.world_size, one.source, _START_FEWER) for one in evidence if one.at_least]
    size = max((max(larger, default=own), *needed), key=lambda size: size.world)
    return replace(run, world_size=size.world), size


def _rank_layout(
    checkpoint: Checkpoint,
    inventory: Inventory,
    size: _Size,
    doubts: Sequence[Finding],
    misplaced: Mapping[str, Misplaced],
) -> Checkpoint:
    present = set(checkpoint.ranks)
    folders = set(inventory.folder_ranks)
    unreadable = {f"rank_{rank}" for rank in inventory.unreadable_ranks}
    remedies = {one.path: one.remedy for one in inventory.findings if one.path in unreadable}
    template = checkpoint.shards[0]
    world_size, why, _ = size
    findings = list(doubts)
    lacking = sorted(set(range(world_size)) - present)
    for rank in lacking[:MOST_NAMED]:
        path = _path_for(template, Rank(rank))
        if (folder := f"rank_{rank}") in unreadable:
            findings.append(_unknown(path, Rank(rank), remedies.get(folder)))
        elif path in misplaced:
            findings.append(misplaced[path].instead_of_missing(f"expected {world_size} ranks because {why}"))
        elif rank not in folders:
            findings.append(_missing(Code.RANK_MISSING, f"no folder rank_{rank}", path, size, [rank]))
        else:
            findings.append(_missing(Code.SHARD_MISSING, f"rank {rank} has no shard of it", path, size, [rank]))
    findings += _and_more(lacking[MOST_NAMED:], size)
    extra = sorted(rank for rank in present if rank >= world_size)
    if extra:
        findings.append(_too_many(checkpoint, len(present), world_size, why))
    return replace(
        checkpoint,
        topology=Topology(world_size=world_size),
        findings=(*checkpoint.findings, *findings),
    )


def _iteration(checkpoint: Checkpoint, evidence: Sequence[WorldEvidence], roles: AbstractSet[ShardRole]) -> Checkpoint:
    """Compare with the record, or without one with the file names: each rank has the roles that the tree knows.

    There is no checkpoint without weights, whatever a record says: MindFormers would train on from random ones.
    """
    checkpoint = with_recorded(checkpoint)
    world = checkpoint.topology.world_size
    findings: list[Finding] = []
    if world is not None and checkpoint.expected is None:
        size = _Size(world, f"the files' names say {world}", _RESTORE_ROLE)
        present = {(shard.rank, shard.role) for shard in checkpoint.shards}
        lacking = [(rank, role) for rank in range(world) for role in sorted(roles) if (rank, role) not in present]
        findings += [
            _missing(Code.SHARD_MISSING, f"rank {rank} has no {role.value} shard of it", checkpoint.name, size, [rank])
            for rank, role in lacking[:MOST_NAMED]
        ]
        findings += _and_more([rank for rank, _ in lacking[MOST_NAMED:]], size)
    elif world is not None and all(shard.role is not ShardRole.MODEL for shard in checkpoint.shards):
        message = "no rank has a model shard of it, and its own record names none or none that is there"
        findings.append(
            Finding(
                code=Code.SHARD_MISSING,
                severity=Severity.DAMAGE,
                message=message,
                path=checkpoint.name,
                remedy=_RESTORE_ROLE,
            )
        )
    for one in evidence:
        if one.declared and world is not None and one.world_size != world:
            message = f"saved by {world} ranks, to be loaded by {one.world_size} ({one.source}): MindFormers re-slices"
            findings.append(Finding(code=Code.WORLD_SIZE_DIFFERS, severity=Severity.NOTE, message=message))
    return replace(checkpoint, findings=(*checkpoint.findings, *findings))


def _unproven_shrinks(
    inventory: Inventory, runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence]
) -> dict[tuple[str, int], tuple[Finding, ...]]:
    """Doubt a run on fewer ranks than one before it as long as all it has to show is one save.

    A crash during the first save of a run looks the same where the ranks that were slower left nothing. Nobody's
    crash is at the same rank twice: a second save of that size, also by a later run, proves that it is meant. So does
    a config that starts just this size.
    """
    if any(one.declared for one in evidence):
        return {}
    meant = {one.world_size for one in evidence if one.confirms}
    worlds = {(run.prefix, run.run): run.world_size for run in runs}
    saves: dict[tuple[str, int], set[tuple[int, EpochStep | None]]] = {}
    for one in inventory.checkpoints:
        saves.setdefault((one.prefix, worlds[one.prefix, one.run]), set()).add((one.run, one.position))
    unproven: dict[tuple[str, int], tuple[Finding, ...]] = {}
    for run in runs:
        larger = [
            other.run
            for other in runs
            if other.prefix == run.prefix and other.run < run.run and other.world_size > run.world_size
        ]
        since = [save for save in saves[run.prefix, run.world_size] if larger and save[0] > larger[-1]]
        if len(since) == 1 and run.world_size not in meant:
            unproven[run.prefix, run.run] = (_unproven(run, worlds[run.prefix, larger[-1]]),)
    return unproven


def _unproven(run: RunSummary, before: int) -> Finding:
    return Finding(
        code=Code.WORLD_SIZE_DIFFERS,
        severity=Severity.SUSPECT,
        message=(
            f"run {run.run} has one save, on {run.world_size} ranks, where an earlier run had {before}: it went on "
            "smaller, or stopped before all ranks had saved"
        ),
        expected=str(before),
        actual=str(run.world_size),
        remedy=f"pass --world-size {run.world_size} if run {run.run} was started on {run.world_size} ranks",
    )


def _shrink_notes(
    runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence], unproven: Collection[tuple[str, int]]
) -> list[Finding]:
    """Say where a size was taken for meant, so that whoever knows better can object."""
    if not runs:
        return []
    newest = runs[-1]
    others = {}
    if (newest.prefix, newest.run) not in unproven:
        others = {run.world_size: f"run {run.run} had {run.world_size}" for run in runs if run.prefix == newest.prefix}
    others |= {one.world_size: one.source for one in evidence if not (one.declared or one.confirms)}
    return [
        Finding(
            code=Code.WORLD_SIZE_DIFFERS,
            severity=Severity.NOTE,
            message=f"the newest run has {newest.world_size} ranks, but {why}; taken for meant",
            remedy=f"pass --world-size {size} if ranks of the newest run are lost",
        )
        for size, why in sorted(others.items())
        if size != newest.world_size
    ]


def _path_for(template: Shard, rank: Rank) -> str:
    """Spell the path that a missing rank's shard would have, after one that is there."""
    folder, _, name = template.path.partition("/")
    head, _, tail = name.rpartition(f"_{folder}")
    return f"rank_{rank}/{head}_rank_{rank}{tail}"


def _missing(code: Code, what: str, path: str | None, size: _Size, ranks: Sequence[int]) -> Finding:
    return Finding(
        code=code,
        severity=Severity.DAMAGE,
        message=f"{what} (expected {size.world} ranks because {size.why})",
        path=path,
        remedy=size.remedy,
        ranks=tuple(map(Rank, ranks)),
    )


def _and_more(ranks: Sequence[int], size: _Size) -> list[Finding]:
    """Say in one finding what is missing beyond those that are named."""
    if not ranks:
        return []
    what = f"{len(ranks)} more shards are not there, of ranks {ranks[0]} to {ranks[-1]}"
    return [_missing(Code.SHARD_MISSING, what, None, size, sorted(set(ranks)))]


def _unknown(path: str, rank: Rank, remedy: str | None) -> Finding:
    return Finding(
        code=Code.UNREADABLE,
        severity=Severity.UNKNOWN,
        message="the rank's folder cannot be listed, so nobody knows whether its shard is there",
        path=path,
        remedy=remedy,
        ranks=(rank,),
    )


def _too_many(checkpoint: Checkpoint, have: int, world_size: int, why: str) -> Finding:
    return Finding(
        code=Code.WORLD_SIZE_DIFFERS,
        severity=Severity.SUSPECT,
        message=f"{checkpoint.name} has shards of {have} ranks, but {world_size} are expected because {why}",
        expected=str(world_size),
        actual=str(have),
        remedy="set auto_trans_ckpt: True to re-slice it, or correct --world-size",
    )
