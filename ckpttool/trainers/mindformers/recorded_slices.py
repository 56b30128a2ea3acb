"""Which slice of each tensor a rank holds, by the strategy files beside the checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.replicas import RecordedSlices
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage import above, open_storage
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.mindformers.strategy import STRATEGY_FOLDER, strategy_files
from ckpttool.trainers.mindformers.strategy_file import SavedLayout, StageStrategy, parse_strategy

STRATEGY_LIMIT = 8 << 20
"""Bytes. A real one has some 60 for each parameter and optimizer state."""

MOST_ARRANGEMENTS = 64
"""Ways in which the tensors of a stage lie; a model has some ten."""

MOST_LOST = 4
"""Ranks of a stage for each that has a shard, so that a number in a file makes nobody count for long."""


def strategy_slices(storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
    """Return what the strategy files say of a checkpoint; None where they say nothing that may be believed.

    MindSpore writes all ranks of a stage the same: of each stage two are read, and they have to agree. The next start
    of a training writes over them: one that is newer than the checkpoint is of another start, which may have had
    another arrangement.

    Args:
        storage: The tree, beside which the folder of the strategy files lies.
        checkpoint: Of one file a rank.

    Raises:
        OSError: The disk did not answer.
    """
    output = open_storage(above(storage.root))
    paths = strategy_files(output)
    ranks = checkpoint.ranks
    if not _are_of_one_world(ranks, paths):
        return None
    stages = list(_stages(output, {rank: paths[rank] for rank in ranks if rank in paths}, storage, checkpoint))
    every = {rank for stage in stages for rank in stage.ranks}
    # A grid with a side that is none of ranks, as where operators are interleaved, has more than there are.
    if not set(ranks) <= every or max(every) > max(paths):
        return None
    return RecordedSlices(source=f"../{STRATEGY_FOLDER}", slices=_slices(stages), is_of_save=False)


def _are_of_one_world(saved: Collection[Rank], ranks: Collection[Rank]) -> bool:
    """Tell whether so many ranks may have saved what so many ranks trained: a few shards may be lost."""
    world = max(ranks, default=-1) + 1
    return max(saved, default=world) < world and (2 * len(saved) > world or world - len(saved) == 1)


class _Stage(NamedTuple):
    ranks: range
    strategy: StageStrategy


def _stages(output: Storage, paths: Mapping[Rank, str], storage: Storage, checkpoint: Checkpoint) -> Iterator[_Stage]:
    remaining = sorted(paths)
    while remaining:
        first = _read(output, paths[remaining[0]])
        if first is None or remaining[0] // first.ranks != first.stage or first.ranks > MOST_LOST * len(paths):
            remaining = remaining[1:]
            continue
        ranks = range(first.stage * first.ranks, (first.stage + 1) * first.ranks)
        stage_ranks = [rank for rank in remaining if rank in ranks]
        remaining = remaining[len(stage_ranks) :]
        is_agreed = len(stage_ranks) > 1 and _read(output, paths[stage_ranks[-1]]) == first
        if is_agreed and all(
            _is_of(output, paths[rank], storage, checkpoint, rank) for rank in (stage_ranks[0], stage_ranks[-1])
        ):
            yield _Stage(ranks, first)


def _read(output: Storage, path: str) -> StageStrategy | None:
    try:
        return parse_strategy(output.small_file(path, limit=STRATEGY_LIMIT), where=path)
    except (OSError, ParseError):  # what cannot be read tells nothing
        return None


def _is_of(output: Storage, path: str, storage: Storage, checkpoint: Checkpoint, rank: Rank) -> bool:
    """Tell whether a rank's file is not newer than its shards."""
    written = output.stamp(path).modified_ns
    for shard in checkpoint.shards:
        if shard.rank == rank:
            saved = (shard.stamp or storage.stamp(shard.path)).modified_ns
            if written is None or saved is None or written > saved:
                return False
    return True


def _slices(stages: Iterable[_Stage]) -> dict[str, Mapping[Rank, int]]:
    """Return each tensor's slices by rank, each numbered by the first rank that holds it, so that stages differ."""
    slices: dict[str, Mapping[Rank, int]] = {}
    for stage in stages:
        by_layout: dict[SavedLayout, Mapping[Rank, int]] = {}
        for name, layout in stage.strategy.layouts.items():
            if layout not in by_layout and len(by_layout) < MOST_ARRANGEMENTS:
                by_layout[layout] = _numbered(stage, layout)
            if layout in by_layout:
                slices_before = slices.get(name)
                slices[name] = by_layout[layout] if slices_before is None else {**slices_before, **by_layout[layout]}
    return slices


def _numbered(stage: _Stage, layout: SavedLayout) -> dict[Rank, int]:
    slice_of = layout.slice_of
    first: dict[tuple[int, ...], int] = {}
    if slice_of is None:
        return {}
    return {Rank(rank): first.setdefault(slice_of(rank - stage.ranks[0]), rank) for rank in stage.ranks}
