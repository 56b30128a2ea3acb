"""States of torchdata's StatefulDataLoader: the batches and samples yielded in the current epoch.

Source:
    stateful_dataloader.py and sampler.py of torchdata 0.11, and runs of it with datasets 5.2:

    - A loader with its own processes counts in the main process, and adds the steps since its last snapshot.
    - From a state that was taken at an epoch's last batch, before the loop ended, a loader yields no batches.
    - After the loop ended, `_iterator_finished` is true, and a loader continues with a complete epoch. Without its own
      processes, it yields none if the sampler keeps a state itself (StatefulDistributedSampler), or if the data set is
      an iterable of Hugging Face's datasets.
"""

from __future__ import annotations

from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.core.formats.torch.plain import value_at
from ckpttool.trainers.loader_states import hf_datasets, titan
from ckpttool.trainers.loader_states.counts import count_at

_SINGLE = {"_num_yielded", "_iterator_finished"}
_WITH_PROCESSES = {"_snapshot", "_steps_since_snapshot"}
_MOST_WORKERS = 1024

_SAMPLER_STANDS = "the sampler's own state is at its end, and the loader has no processes"
_DATA_SET_STANDS = "the iterable data set's own state is at its end, and the loader has no processes"


def read(state: object) -> LoaderState | None:
    """Return the position in a state; None for a state of another kind."""
    if not isinstance(state, dict) or not (state.keys() >= _SINGLE or state.keys() >= _WITH_PROCESSES):
        return None
    finished = value_at(state, "_iterator_finished")
    data_sets = _data_sets(state)
    inner = [hf_datasets.read(data_set) or titan.read(data_set) for data_set in data_sets]
    known = [position for position in inner if position is not None]
    batches = batches_in(state)
    only = known[0] if len(known) == len(inner) == 1 else None
    return LoaderState(
        kind="torchdata" if not known else f"torchdata with {known[0].kind}",
        epoch=None if only is None else only.epoch,
        batches=batches,
        samples=samples_in(state),
        workers=processes_in(state),
        finished=finished if isinstance(finished, bool) else None,
        place=None if only is None else only.place,
        order=() if only is None else only.order,
        is_lockstep=not data_sets and not _is_iterable(state),
        never_moved=bool(known)
        and _has_asked_data_sets(state, batches)
        and all(position.never_moved for position in known),
        yields_nothing=_empty_epoch(state, data_sets) if finished is True else None,
    )


def batches_in(state: object) -> int | None:
    """Return the number of batches yielded in the epoch; None if the state does not show it.

    Args:
        state: The contents of the file, apart from its tensors.
    """
    since, last = count_at(state, "_steps_since_snapshot"), count_at(state, "_snapshot", "_snapshot_step")
    return count_at(state, "_num_yielded") if since is None or last is None else last + since


def samples_in(state: object) -> int | None:
    """Return the number of samples yielded in the epoch; None if the state does not show it.

    The number is for one data-parallel rank. A state that is older than its last batch does not show it.
    """
    if not has_processes(state):
        # A finished loader of an iterable has asked its sampler for one batch more than it yielded.
        is_ahead = value_at(state, "fetcher_state", "fetcher_ended") is True
        return None if is_ahead else count_at(state, "_sampler_iter_state", "samples_yielded")
    if count_at(state, "_steps_since_snapshot") != 0:
        return None
    return count_at(state, "_snapshot", "_main_snapshot", "_sampler_iter_state", "samples_yielded")


def has_processes(state: object) -> bool:
    """Return whether the loader had its own processes."""
    return value_at(state, "_snapshot") is not None


def processes_in(state: object) -> int | None:
    """Return the loader's `num_workers`, without which it cannot load the state; None if the state does not show it."""
    return count_at(state, "_snapshot", "_main_snapshot", "_num_workers") if has_processes(state) else 0


def _data_sets(state: object) -> list[object]:
    """Return the states of the data set, one per process, as far as it keeps any."""
    if not has_processes(state):
        states = [value_at(state, "dataset_state"), value_at(state, "fetcher_state", "dataset_iter_state")]
        return [inner for inner in states if inner is not None]
    snapshots = value_at(state, "_snapshot", "_worker_snapshots")
    workers = list(snapshots.values())[:_MOST_WORKERS] if isinstance(snapshots, dict) else []
    inner = [value_at(worker, "dataset_state") for worker in workers]
    inner += [value_at(worker, "fetcher_state", "dataset_iter_state") for worker in workers]
    return [state for state in inner if state is not None]


def _has_asked_data_sets(state: object, batches: int | None) -> bool:
    """Return whether the data set's state is from after a batch; with processes, it is as old as their snapshot."""
    return bool(count_at(state, "_snapshot", "_snapshot_step") if has_processes(state) else batches)


def _is_iterable(state: object) -> bool:
    """Return whether the data set is an iterable, which only then has a fetcher with a state."""
    first = value_at(state, "_snapshot", "_worker_snapshots", "worker_0") if has_processes(state) else state
    return value_at(first, "fetcher_state") is not None


def _empty_epoch(state: object, data_sets: list[object]) -> str | None:
    if has_processes(state):
        return None
    if value_at(state, "_sampler_iter_state", "sampler_state") is not None:
        return _SAMPLER_STANDS
    if len(data_sets) == 1 and hf_datasets.read(data_sets[0]) is not None:
        return _DATA_SET_STANDS
    return None
