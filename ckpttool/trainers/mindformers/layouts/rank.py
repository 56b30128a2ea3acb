"""MindFormers' legacy layout: `rank_N/{prefix}_rank_N[_k]-{epoch}_{step}.{ckpt|safetensors}`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, RunSummary, Topology
from ckpttool.core.domain.expectation import (
    Evidence,
    Expectation,
    Expected,
    FilesByRank,
    RankFiles,
    WorldEvidence,
    WorldSize,
)
from ckpttool.core.domain.finding import Code, Finding, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.records import SealPlace, births_begin, own_path
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import (
    RANK,
    RANK_LAYOUT,
    SUFFIX_OF_FORMAT,
    FileKind,
    parse_shape,
)

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.trainers.mindformers.layouts.misplaced import Misplaced

_RESTORE = "restore it from that rank's disk, or resume from an older checkpoint; --world-size corrects the count"
_START_FEWER = "restore it, or start as many devices as there are ranks with intact files"


class MindFormersRank:
    """The layout that every MindFormers version supports, and the only one before 1.7."""

    name = RANK_LAYOUT
    signs = RANK
    is_tree = True
    rank_files = RankFiles.APART

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List the names in every rank's folder and open one header per save and cohort."""
        from ckpttool.trainers.mindformers.layouts.rank_scan import scan_ranks

        return scan_ranks(storage, listing, options)

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Return the save unchanged, because the scan is complete."""
        return checkpoint

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Determine the number of ranks in each run from all evidence, because no record contains the number."""
        misplaced: dict[str, Misplaced] = {}
        elsewhere: dict[tuple[str, int], Misplaced] = {}
        if inventory.strays:
            from ckpttool.trainers.mindformers.layouts.misplaced import misplaced_shards, ranks_found_elsewhere

            misplaced = misplaced_shards(inventory)
            elsewhere = ranks_found_elsewhere(inventory, misplaced)
        waiting = _folders_without_checkpoint(inventory)
        own_sizes = [
            _own_size(run, inventory.runs, waiting, elsewhere.get((run.prefix, run.run))) for run in inventory.runs
        ]
        sizes = [_weighed(size, own_sizes, evidence.worlds) for size in own_sizes]
        runs = [replace(run, world_size=size.world) for run, size in zip(inventory.runs, sizes, strict=True)]
        size_of = {(run.prefix, run.run): size for run, size in zip(runs, sizes, strict=True)}
        unproven = _unproven_shrinks(inventory, runs, evidence.worlds)
        folders = _Folders(inventory, misplaced)
        return Expected(
            checkpoints=tuple(
                _expectation(save, size_of[save.prefix, save.run], unproven.get((save.prefix, save.run)), folders)
                for save in inventory.checkpoints
            ),
            runs=tuple(runs),
            findings=tuple(_shrink_notes(runs, evidence.worlds, unproven)),
        )

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is a name of temporary files by MindFormers or Python."""
        return parse_shape(name).kind is FileKind.IN_PROGRESS

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the ranks' shards; their folders also contain shards from other saves."""
        return Members(paths=tuple(shard.path for shard in checkpoint.shards))

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place outside the ranks' folders, because other saves share these folders."""
        return seal_place(checkpoint.prefix, checkpoint.name, checkpoint.format)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Derive the path from the path of a different rank, because data-parallel ranks save the same data."""
        return _path_for(checkpoint.shards[0], rank)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return no files, because each rank reads its own folder."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read the slices from the strategy files next to the tree, which the training run wrote at its start."""
        from ckpttool.trainers.mindformers.strategy_file import strategy_slices

        return strategy_slices(storage, checkpoint)

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the meta.json of these ranks."""
        from ckpttool.trainers.mindformers.layouts.pointers import meta_pointers

        return meta_pointers(storage, ranks)

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the meta.json of every rank that has a shard of the save."""
        from ckpttool.trainers.mindformers.layouts.pointers import metas_naming

        return metas_naming(checkpoint)

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Return the name of rank 0's file, whether or not it exists."""
        return _path_for(checkpoint.shards[0], Rank(0)).rpartition("/")[2]

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the folder and the file name.

        Every rank then loads its own file with that name, and makes no choice.
        """
        from ckpttool.trainers.mindformers.load import LOAD_FORMAT, LoadKeys

        # Rank 0's file name after the renames; MindFormers puts each rank's own number into it.
        first = checkpoint.shards[0].path
        renamed = {rename.source: rename.target for rename in checkpoint.renames}
        keys = LoadKeys(
            load_checkpoint=inventory.root,
            resume_training=renamed.get(first, first).rpartition("/")[2],
            load_ckpt_format=LOAD_FORMAT[checkpoint.format],
            use_legacy_format=True,
        )
        return keys.settings(checkpoint.renames)


def seal_place(prefix: str, name: str, fmt: FormatName) -> SealPlace:
    """Return the place of a save's seal, which depends on the save's identity in the tree."""
    # `x-_1` and `25_2` would give the name of `x` and `_1-25_2`.
    ambiguous = re.search(r"-_[0-9]+\Z", prefix) is not None
    path = own_path(f"{prefix}-{name}.{SUFFIX_OF_FORMAT[fmt]}", ".manifest.json", ambiguous=ambiguous)
    # ckpttool's own writer writes no other format, and rejects such prefixes.
    births = births_begin(prefix, name) if fmt is FormatName.SAFETENSORS and not ambiguous else None
    return SealPlace(path=path, layout=RANK_LAYOUT, checkpoint=name, prefix=prefix, births=births)


def _path_for(template: Shard, rank: Rank) -> str:
    """Derive the path of one rank's shard from the path of a different rank's."""
    folder, _, name = template.path.partition("/")
    head, _, tail = name.rpartition(f"_{folder}")
    return f"rank_{rank}/{head}_rank_{rank}{tail}"


# The number of ranks of a save ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """Ranks whose folder contains no checkpoint of any run."""

    size: WorldSize
    """The world size that these folders suggest."""
    empty: frozenset[int]
    """The ranks among them with a folder that can be listed."""


class _Folders:
    """Evidence for missing shards, from the ranks' folders."""

    def __init__(self, inventory: Inventory, misplaced: Mapping[str, Misplaced]) -> None:
        """Compute the facts about folders once, for all saves."""
        self._there = frozenset(inventory.folder_ranks)
        self._misplaced = misplaced
        remedies = {finding.path: finding.remedy for finding in inventory.findings}
        self._unlisted = {folder: remedies.get(folder) for folder in inventory.unlisted}

    def absent(self, template: Shard, size: WorldSize, rank: Rank, role: ShardRole) -> Finding:
        """Report that a rank's shard is missing, or may be missing.

        Args:
            template: A shard of the same save.
            size: The world size, with the evidence for it.
            rank: The rank of the shard.
            role: The role, of which this layout has only one.
        """
        del role
        path, folder = _path_for(template, rank), f"rank_{rank}"
        if folder in self._unlisted:
            return unknown(
                Code.UNREADABLE,
                "the rank's folder cannot be listed, so whether its shard exists is unknown",
                path=path,
                remedy=self._unlisted[folder],
                ranks=(rank,),
            )
        if path in self._misplaced:
            return self._misplaced[path].instead_of_missing(f"expected {size.world} ranks because {size.why}")
        if rank not in self._there:
            return size.missing(f"no folder {folder}", Code.RANK_MISSING, path, [rank])
        return size.missing(f"rank {rank} has no shard of it", Code.SHARD_MISSING, path, [rank])


def _expectation(save: Checkpoint, size: WorldSize, doubt: Finding | None, folders: _Folders) -> Expectation:
    ranks = save.ranks
    notes = []
    if ranks[-1] >= size.world:
        notes.append(
            suspect(
                Code.WORLD_SIZE_DIFFERS,
                f"{save.name} has shards of {len(ranks)} ranks, but {size.world} are expected because {size.why}",
                expected=str(size.world),
                actual=str(len(ranks)),
                remedy="set auto_trans_ckpt: True to re-slice it, or correct --world-size",
            )
        )
    return Expectation(
        files=FilesByRank(size=size, roles=(ShardRole.FULL,), absent=partial(folders.absent, save.shards[0], size)),
        topology=Topology(world_size=size.world, confirmed=size.confirmed),
        doubts=() if doubt is None else (doubt,),
        notes=tuple(notes),
    )


def _size(world: int, why: str, remedy: str = _RESTORE) -> WorldSize:
    return WorldSize(world=world, why=why, remedy=remedy)


def _folders_without_checkpoint(inventory: Inventory) -> _Waiting | None:
    """Return the world size that folders without a checkpoint suggest; None if there is no such folder.

    These folders may be empty or unreadable. MindFormers creates a rank's folder when the rank starts, so each folder
    belongs to a rank that trained here. A leftover of an older, larger run looks different, because such a run left
    files.
    """
    filled = {shard.rank for checkpoint in inventory.checkpoints for shard in checkpoint.shards}
    waiting = [rank for rank in inventory.folder_ranks if rank not in filled]
    if not waiting:
        return None
    last = max(waiting)
    closed = set(inventory.unlisted)
    unlisted = {rank for rank in waiting if f"rank_{rank}" in closed}
    message = "cannot be listed" if last in unlisted else "has no checkpoint of any run"
    size = _size(last + 1, f"there is a folder rank_{last}, which {message}")
    return _Waiting(size=size, empty=frozenset(waiting) - unlisted)


def _own_size(
    run: RunSummary, runs: Sequence[RunSummary], waiting: _Waiting | None, gathered: Misplaced | None
) -> WorldSize:
    """Determine a run's number of ranks from its own files and the empty folders.

    Args:
        run: The run.
        runs: All runs of the tree.
        waiting: Ranks whose folder contains no checkpoint of any run.
        gathered: The shard of the run's highest rank that is in a different rank's folder.
    """
    own_world = run.world_size
    if gathered is not None and gathered.rank >= max(own_world, waiting.size.world if waiting else 0):
        folder = gathered.path.partition("/")[0]
        return _size(gathered.rank + 1, f"{folder} has a file of rank {gathered.rank}")
    has_grown = any(
        later.prefix == run.prefix and later.run > run.run and later.world_size > own_world for later in runs
    )
    if waiting is None or waiting.size.world <= own_world or has_grown:  # the run grew, which created the folder
        return replace(_size(own_world, f"its highest rank is {own_world - 1}"), confirmed=False)
    world = waiting.size.world
    if world % own_world or not waiting.empty.issuperset(range(own_world, world)):
        return waiting.size
    either = (
        f"{world - own_world} ranks lost their files, or the training grew to {world} ranks and has not saved since"
    )
    remedy = (
        f"pass --world-size {own_world} if the training grew and stopped before its first save; otherwise restore them"
    )
    return _size(world, f"{waiting.size.why}; either {either}", remedy)


def _weighed(own_size: WorldSize, own_sizes: Sequence[WorldSize], evidence: Sequence[WorldEvidence]) -> WorldSize:
    """Weigh the evidence for a larger world than the run's own files show.

    If a run's number of ranks divides another run's, the training continued with fewer or more ranks. Any other
    difference (3 of 4, 7 of 8, 1 of many) counts as a lost rank folder, because unknown is never good.

    Args:
        own_size: The world size according to the run's own files.
        own_sizes: The same for each run.
        evidence: World sizes from `--world-size`, a config, strategy files or a seal.
    """
    for world in evidence:
        if world.declared:
            return _size(world.world_size, world.source)
    is_confirmed = own_size.confirmed or any(world.world_size == own_size.world for world in evidence)
    sizes = [replace(own_size, confirmed=is_confirmed)]
    others = [_size(size.world, f"another run of this tree had {size.world}") for size in own_sizes]
    others += [_size(world.world_size, world.source) for world in evidence if not world.confirms]
    larger = [size for size in others if size.world > own_size.world]
    sizes += [size for size in larger if size.world % own_size.world or own_size.world == 1]
    sizes += [_size(world.world_size, world.source, _START_FEWER) for world in evidence if world.at_least]
    return max(sizes, key=lambda size: size.world)


def _unproven_shrinks(
    inventory: Inventory, runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence]
) -> dict[tuple[str, int], Finding]:
    """Report a run on fewer ranks than an earlier run as suspect, as long as it has only one save.

    A crash during the first save of a run looks the same if the slower ranks left no file. No crash repeats at the same
    rank: a second save of that size, also by a later run, proves that the size is intended. So does a config for
    exactly this size.
    """
    if any(world.declared for world in evidence):
        return {}
    confirmed = {world.world_size for world in evidence if world.confirms}
    worlds = {(run.prefix, run.run): run.world_size for run in runs}
    saves: dict[tuple[str, int], set[tuple[int, str | None]]] = {}
    for checkpoint in inventory.checkpoints:
        prefix, run_number = checkpoint.prefix, checkpoint.run
        saves.setdefault((prefix, worlds[prefix, run_number]), set()).add((run_number, checkpoint.label))
    unproven: dict[tuple[str, int], Finding] = {}
    for run in runs:
        larger = [
            before.run
            for before in runs
            if before.prefix == run.prefix and before.run < run.run and before.world_size > run.world_size
        ]
        since = [save for save in saves[run.prefix, run.world_size] if larger and save[0] > larger[-1]]
        if len(since) == 1 and run.world_size not in confirmed:
            had = worlds[run.prefix, larger[-1]]
            unproven[run.prefix, run.run] = suspect(
                Code.WORLD_SIZE_DIFFERS,
                f"run {run.run} has one save, on {run.world_size} ranks, while an earlier run had {had}: it "
                "continued with fewer ranks, or stopped before all ranks had saved",
                expected=str(had),
                actual=str(run.world_size),
                remedy=f"pass --world-size {run.world_size} if run {run.run} was started on {run.world_size} ranks",
            )
    return unproven


def _shrink_notes(
    runs: Sequence[RunSummary], evidence: Sequence[WorldEvidence], unproven: Collection[tuple[str, int]]
) -> list[Finding]:
    """Report a smaller size that was accepted as intended, so that the user can object."""
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
            f"the newest run has {newest.world_size} ranks, but {why}; this is assumed to be intended",
            remedy=f"pass --world-size {size} if ranks of the newest run are lost",
        )
        for size, why in sorted(by_world.items())
        if size != newest.world_size
    ]
