"""Which ranks must there be of each save in `rank_N/` folders? Weighed from all that speaks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, RunSummary, Topology
from ckpttool.core.domain.expectation import Evidence, Expectation, Expected, FilesByRank, WorldEvidence, WorldSize
from ckpttool.core.domain.finding import Code, Finding, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import Shard, ShardRole
from ckpttool.core.domain.units import Rank

if TYPE_CHECKING:
    from ckpttool.trainers.mindformers.layouts.misplaced import Misplaced

_RESTORE = "restore it from that rank's disk, or resume from an older checkpoint; --world-size corrects the count"
_START_FEWER = "restore it, or start as many devices as there are ranks whose files are whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """Ranks that have a folder, but no checkpoint of any run in it."""

    size: WorldSize
    """What they speak for."""
    empty: frozenset[int]
    """Those whose folder can be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a tree shows of ranks beyond those that have shards in their own folders."""

    waiting: _Waiting | None
    elsewhere: Mapping[tuple[str, int], Misplaced]
    """By run: the shard of its highest rank that lies in another rank's folder."""


class _Folders:
    """What a missing shard's own folder tells of it."""

    def __init__(self, inventory: Inventory, misplaced: Mapping[str, Misplaced]) -> None:
        """Take what is said of folders once for all saves."""
        self._there = frozenset(inventory.folder_ranks)
        self._misplaced = misplaced
        remedies = {finding.path: finding.remedy for finding in inventory.findings}
        self._unlisted = {folder: remedies.get(folder) for folder in inventory.unlisted}

    def absent(self, template: Shard, size: WorldSize, rank: Rank, role: ShardRole) -> Finding:
        """Say that a rank's shard is not there, or not known to be.

        Args:
            template: A shard of the same save.
            size: Why it is missed.
            rank: Whose it is.
            role: The only one that there is.
        """
        del role
        path, folder = path_for(template, rank), f"rank_{rank}"
        if folder in self._unlisted:
            return unknown(
                Code.UNREADABLE,
                "the rank's folder cannot be listed, so nobody knows whether its shard is there",
                path=path,
                remedy=self._unlisted[folder],
                ranks=(rank,),
            )
        if path in self._misplaced:
            return self._misplaced[path].instead_of_missing(f"expected {size.world} ranks because {size.why}")
        if rank not in self._there:
            return size.missing(f"no folder {folder}", Code.RANK_MISSING, path, [rank])
        return size.missing(f"rank {rank} has no shard of it", Code.SHARD_MISSING, path, [rank])


def expected_of_ranks(inventory: Inventory, evidence: Evidence) -> Expected:
    """Say for every save how many ranks it must have.

    Args:
        inventory: As scanned.
        evidence: From `--world-size`, a config, strategy files or a seal.
    """
    misplaced: dict[str, Misplaced] = {}
    elsewhere: dict[tuple[str, int], Misplaced] = {}
    if inventory.strays:
        from ckpttool.trainers.mindformers.layouts.misplaced import misplaced_shards, ranks_found_elsewhere

        misplaced = misplaced_shards(inventory)
        elsewhere = ranks_found_elsewhere(inventory, misplaced)
    tree_view = _Shown(waiting=_folders_without_checkpoint(inventory), elsewhere=elsewhere)
    sized = tuple(_expected_of_run(run, inventory.runs, evidence.worlds, tree_view) for run in inventory.runs)
    runs = tuple(run for run, _ in sized)
    sizes = {(run.prefix, run.run): size for run, size in sized}
    unproven = _unproven_shrinks(inventory, runs, evidence.worlds)
    folders = _Folders(inventory, misplaced)
    return Expected(
        checkpoints=tuple(
            _expectation(
                checkpoint,
                sizes[checkpoint.prefix, checkpoint.run],
                unproven.get((checkpoint.prefix, checkpoint.run), ()),
                folders,
            )
            for checkpoint in inventory.checkpoints
        ),
        runs=runs,
        findings=tuple(_shrink_notes(runs, evidence.worlds, unproven)),
    )


def _expectation(
    checkpoint: Checkpoint, size: WorldSize, doubts: tuple[Finding, ...], folders: _Folders
) -> Expectation:
    ranks = checkpoint.ranks
    return Expectation(
        files=FilesByRank(
            size=size, roles=(ShardRole.FULL,), absent=partial(folders.absent, checkpoint.shards[0], size)
        ),
        topology=Topology(world_size=size.world, confirmed=size.confirmed),
        doubts=doubts,
        notes=(_too_many(checkpoint, len(ranks), size),) if ranks[-1] >= size.world else (),
    )


def _size(world: int, why: str, remedy: str = _RESTORE) -> WorldSize:
    return WorldSize(world=world, why=why, remedy=remedy)


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
    closed = set(inventory.unlisted)
    unlisted = {rank for rank in waiting if f"rank_{rank}" in closed}
    message = "cannot be listed" if last in unlisted else "holds no checkpoint of any run"
    size = _size(last + 1, f"there is a folder rank_{last}, which {message}")
    return _Waiting(size=size, empty=frozenset(waiting) - unlisted)


def _own_size(run: RunSummary, runs: Sequence[RunSummary], tree_view: _Shown) -> WorldSize:
    """Count the ranks by what the run's own files and the empty folders show."""
    own_world, waiting = run.world_size, tree_view.waiting
    gathered = tree_view.elsewhere.get((run.prefix, run.run))
    if gathered is not None and gathered.rank >= max(own_world, waiting.size.world if waiting else 0):
        folder = gathered.path.partition("/")[0]
        return _size(gathered.rank + 1, f"{folder} holds a file of rank {gathered.rank}")
    has_grown = any(
        later.prefix == run.prefix and later.run > run.run and later.world_size > own_world for later in runs
    )
    if waiting is None or waiting.size.world <= own_world or has_grown:  # the folder came with the growth
        return replace(_size(own_world, f"its highest rank is {own_world - 1}"), confirmed=False)
    world = waiting.size.world
    if world % own_world or not waiting.empty.issuperset(range(own_world, world)):
        return waiting.size
    either = f"{world - own_world} ranks lost their files, or the training grew to {world} and saved nothing since"
    remedy = (
        f"pass --world-size {own_world} if the training had grown and stopped before its first save; else restore them"
    )
    return _size(world, f"{waiting.size.why}; either {either}", remedy)


def _expected_of_run(
    run: RunSummary, runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence], tree_view: _Shown
) -> tuple[RunSummary, WorldSize]:
    """Weigh what speaks for a larger world than the run's own files show.

    A run on a whole fraction of another run's ranks is a training that went on smaller or larger. Any other
    difference (3 of 4, 7 of 8, 1 of many) is a rank folder that got lost, and unknown is never good.
    """
    for world in evidence:
        if world.declared:
            return replace(run, world_size=world.world_size), _size(world.world_size, world.source)
    own_size = _own_size(run, runs, tree_view)
    own_size = replace(
        own_size, confirmed=own_size.confirmed or any(world.world_size == own_size.world for world in evidence)
    )
    worlds = [_own_size(run_, runs, tree_view).world for run_ in runs]
    sizes = [_size(world, f"another run of this tree had {world}") for world in worlds]
    sizes += [_size(world.world_size, world.source) for world in evidence if not world.confirms]
    larger = [
        size for size in sizes if size.world > own_size.world and (size.world % own_size.world or own_size.world == 1)
    ]
    needed = [_size(world.world_size, world.source, _START_FEWER) for world in evidence if world.at_least]
    size = max((own_size, *larger, *needed), key=lambda size: size.world)
    return replace(run, world_size=size.world), size


def _unproven_shrinks(
    inventory: Inventory, runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence]
) -> dict[tuple[str, int], tuple[Finding, ...]]:
    """Doubt a run on fewer ranks than one before it as long as all it has to show is one save.

    A crash during the first save of a run looks the same where the ranks that were slower left nothing. Nobody's
    crash is at the same rank twice: a second save of that size, also by a later run, proves that it is meant. So does
    a config that starts just this size.
    """
    if any(world.declared for world in evidence):
        return {}
    confirmed = {world.world_size for world in evidence if world.confirms}
    worlds = {(run.prefix, run.run): run.world_size for run in runs}
    saves: dict[tuple[str, int], set[tuple[int, str | None]]] = {}
    for checkpoint in inventory.checkpoints:
        prefix, run_number = checkpoint.prefix, checkpoint.run
        saves.setdefault((prefix, worlds[prefix, run_number]), set()).add((run_number, checkpoint.label))
    unproven: dict[tuple[str, int], tuple[Finding, ...]] = {}
    for run in runs:
        larger = [
            run_.run
            for run_ in runs
            if run_.prefix == run.prefix and run_.run < run.run and run_.world_size > run.world_size
        ]
        since = [save for save in saves[run.prefix, run.world_size] if larger and save[0] > larger[-1]]
        if len(since) == 1 and run.world_size not in confirmed:
            unproven[run.prefix, run.run] = (_unproven(run, worlds[run.prefix, larger[-1]]),)
    return unproven


def _unproven(run: RunSummary, before: int) -> Finding:
    return suspect(
        Code.WORLD_SIZE_DIFFERS,
        f"run {run.run} has one save, on {run.world_size} ranks, where an earlier run had {before}: it went on "
        "smaller, or stopped before all ranks had saved",
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
    by_world = {}
    if (newest.prefix, newest.run) not in unproven:
        by_world = {
            run.world_size: f"run {run.run} had {run.world_size}" for run in runs if run.prefix == newest.prefix
        }
    by_world |= {world.world_size: world.source for world in evidence if not (world.declared or world.confirms)}
    return [
        note(
            Code.WORLD_SIZE_DIFFERS,
            f"the newest run has {newest.world_size} ranks, but {why}; taken for meant",
            remedy=f"pass --world-size {size} if ranks of the newest run are lost",
        )
        for size, why in sorted(by_world.items())
        if size != newest.world_size
    ]


def path_for(template: Shard, rank: Rank) -> str:
    """Spell the path of one rank's shard, after another's."""
    folder, _, name = template.path.partition("/")
    head, _, tail = name.rpartition(f"_{folder}")
    return f"rank_{rank}/{head}_rank_{rank}{tail}"


def _too_many(checkpoint: Checkpoint, have: int, size: WorldSize) -> Finding:
    return suspect(
        Code.WORLD_SIZE_DIFFERS,
        f"{checkpoint.name} has shards of {have} ranks, but {size.world} are expected because {size.why}",
        expected=str(size.world),
        actual=str(have),
        remedy="set auto_trans_ckpt: True to re-slice it, or correct --world-size",
    )
