"""Data position of verl's SFT trainer, which has a loader on each data-parallel rank.

Source:
    Runs of `SFTTrainer.fit` and `CheckpointHandler` of verl 0.9.1 with torchdata 0.11.0 on two ranks:

    - Within an epoch, each loader continues with its next batch, also in later epochs.
    - From a save at an epoch's last batch, the loaders yield no batches, so the whole next epoch is skipped. Without
      any `data_N.pt`, such a save continues exactly.
    - A rank without its file starts the epoch from the beginning; only rank 0 logs a warning.
    - Each rank skips the samples that its state counts, in its own part of the data. With fewer data-parallel ranks of
      the same number of processes, these are fewer samples altogether.
    - The epoch, and with it the order, follows from the step and the new batch size.
    - With another number of `data.num_workers`, the start stops with an AssertionError.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import Consumed, consumed, restarting
from ckpttool.core.domain.data_position import DataEffect, GoesOn, SampleSource
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import counted
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.loader_states.torchdata import batches_in, processes_in, samples_in
from ckpttool.trainers.verl import is_data
from ckpttool.trainers.verl.epochs import batch_counts, epoch_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.base import Resume

_STATES = "each data-parallel rank continues from its own loader's state"
_NO_STATES = "the save has no data_N.pt, so each loader starts the epoch from the beginning"
AT_EPOCHS_END = "the save was made at the last batch of an epoch, and from there verl skips the whole next epoch"
_MAY_BE_LAST = "it may have been saved at the last batch of an epoch, from which verl skips the whole next epoch"
_UNREADABLE = "the states of the loaders do not show how many batches they had read"
_APART = "the loaders of the data-parallel ranks had read different numbers of batches"
_OTHER_BATCHES = "each rank skips the samples already read, but the epoch follows from the step and the new batch size"
_FEWER_RANKS = "each rank skips only the samples of one old data-parallel rank"
_MORE_RANKS = "verl does not redistribute the loaders' states, and ranks without one start the epoch from the beginning"
_AS_THEY_WERE = "the data set and data.train_batch_size are unchanged"
_ENDS_AN_EPOCH = "the save was made at the last batch of an epoch"
WITHOUT_STATES = "move all data_N.pt files out of the save: verl then starts the next epoch at its beginning"
"""Remedy for a save at an epoch's last batch; verl was run with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaders:
    """The states of a save's loaders."""

    ranks: int
    """Number of data-parallel ranks with a state."""
    batches: frozenset[int | None]
    """Numbers of batches read in the epoch."""
    samples: int | None
    """Samples that each loader had read in the epoch; None if unknown, or if the loaders differ."""
    processes: frozenset[int | None]
    """Numbers of processes of the loaders."""


def fine_tuning_position(resume: Resume) -> tuple[GoesOn, str | None]:
    """Return the position of the loaders of the SFT trainer, and the remedy if they do not continue exactly."""
    checkpoint, step = resume.plan.point.checkpoint, resume.plan.point.step
    paths = loader_paths(checkpoint)
    read = consumed(resume.plan, resume.inventory, resume.data)
    length = epoch_batches(resume.storage, resume.inventory, checkpoint)
    if not paths:
        return _restarted(step, read, length), "resume from a save that has its data_N.pt"
    loaders = _loaders(resume.storage, paths)
    position = GoesOn(
        effect=DataEffect.UNKNOWN,
        samples=read.samples,
        source=read.source,
        where=posixpath.join(resume.plan.load.path, "data_*.pt"),
    )
    if len(loaders.batches) > 1:
        return replace(position, why=_APART), None
    (batches,) = loaders.batches
    if not batches:
        return replace(position, why=_UNREADABLE), None
    batch = None if loaders.samples is None else loaders.ranks * loaders.samples // batches
    position = replace(position, batches=batches)
    if position.samples is None and batches == step and batch is not None:
        position = replace(position, samples=batches * batch, source=SampleSource.CONTENT)
    other_sizes = _with_other_sizes(resume, position, loaders, batch)
    if other_sizes is not None:
        return other_sizes, None
    return _unchanged(position, length, batch, _same_start(checkpoint, loaders))


def _with_other_sizes(resume: Resume, position: GoesOn, loaders: _Loaders, batch: int | None) -> GoesOn | None:
    """Return the position with a different batch size or number of data-parallel ranks; None if both are unchanged."""
    new_batch, new_ranks = resume.data.new_global_batch, resume.sizes.data
    if new_ranks is not None and new_ranks != loaders.ranks:
        return _with_other_ranks(position, loaders, new_ranks)
    if new_batch in {None, batch}:
        return None
    position = replace(position, why=_OTHER_BATCHES)
    if position.batches is None or position.batches != resume.plan.point.step:
        return position
    # If both runs are in the first epoch, the batch size does not change its order.
    checkpoint = resume.plan.point.checkpoint
    conditions = (f"{_within(position.batches)} of either size", *_same_start(checkpoint, loaders))
    return replace(position, exact_if=conditions)


def _unchanged(
    position: GoesOn, length: int | None, batch: int | None, same_start: tuple[str, ...]
) -> tuple[GoesOn, str | None]:
    """Return the position with unchanged sizes, and the remedy.

    Args:
        position: The position, as far as it is known.
        length: Number of batches per epoch; None if unknown.
        batch: Global batch size in samples; None if unknown.
        same_start: Conditions on the settings of the start.
    """
    batches, conditions = position.batches or 0, (_AS_THEY_WERE, *same_start)
    if length is None:
        return replace(position, why=_MAY_BE_LAST, exact_if=(_within(batches), *conditions)), None
    if length == batches:
        lost = None if batch is None else length * batch
        return replace(position, effect=DataEffect.LOSES, why=AT_EPOCHS_END, lost=lost), WITHOUT_STATES
    exact = replace(position, effect=DataEffect.EXACT, why=_STATES, repeated=0, lost=0, exact_if=conditions)
    return exact, None


def loader_paths(checkpoint: Checkpoint) -> list[str]:
    """Return the paths of the states of a save's loaders."""
    return [shard.path for shard in checkpoint.shards if is_data(posixpath.basename(shard.path))]


def _loaders(storage: Storage, paths: Sequence[str]) -> _Loaders:
    states = list(map_waiting(lambda path: first_value(storage, [path]), paths))
    samples = {samples_in(state) for state in states}
    return _Loaders(
        ranks=len(paths),
        batches=frozenset(map(batches_in, states)),
        samples=samples.pop() if len(samples) == 1 else None,
        processes=frozenset(map(processes_in, states)),
    )


def _restarted(step: int, read: Consumed, length: int | None) -> GoesOn:
    """Return the position without states: the start of the epoch in which the step is."""
    if length is not None and step % length == 0:
        return GoesOn(effect=DataEffect.EXACT, why=_ENDS_AN_EPOCH, samples=read.samples, source=read.source)
    epoch = None if length is None or read.old_batch is None or read.changes else length * read.old_batch
    position = restarting(read, epoch_samples=epoch, why=_NO_STATES)
    conditions = (_ENDS_AN_EPOCH, _AS_THEY_WERE) if length is None else ()
    return replace(position, effect=DataEffect.RESTARTS, exact_if=conditions)


def _with_other_ranks(position: GoesOn, loaders: _Loaders, ranks: int) -> GoesOn:
    if ranks > loaders.ranks:
        return replace(position, why=_MORE_RANKS)
    repeated = None if loaders.samples is None else loaders.samples * (loaders.ranks - ranks)
    return replace(position, effect=DataEffect.REPEATS, why=_FEWER_RANKS, repeated=repeated)


def _same_start(checkpoint: Checkpoint, loaders: _Loaders) -> tuple[str, ...]:
    """Return the conditions on the settings of the start, apart from the data and the batch size."""
    known = set(loaders.processes - {None})
    workers = known.pop() if len(loaders.processes) == len(known) == 1 else "unchanged"
    conditions = [f"data.num_workers is {workers}"]
    if loaders.ranks != checkpoint.topology.world_size:
        conditions.append(f"the run has {counted(loaders.ranks, 'data-parallel rank')}")
    return tuple(conditions)


def _within(batches: int) -> str:
    return f"an epoch has more than {counted(batches, 'batch', 'batches')}"


def epoch_batches(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> int | None:
    """Return the number of batches per epoch; None if the saves do not determine it."""
    counts = batch_counts(storage, inventory, checkpoint, lambda save: next(iter(loader_paths(save)), None))
    return epoch_length(counts)
