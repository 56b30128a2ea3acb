"""States of Megatron-Energon's savable loader: the batches that its processes have yielded since the run began.

Source:
    savable_loader.py of megatron-energon 7.4, and runs of it with and without processes: with processes, each has a
    checkpoint and the batches since then; without, the outermost data set counts. The data of a training run repeat
    without an end, so the counts do not restart.
"""

from __future__ import annotations

from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.core.formats.torch.pickle_objects import Global, Made
from ckpttool.core.formats.torch.plain import value_at
from ckpttool.trainers.loader_states.counts import count_at

_CLASS = "SavableDataLoaderState"
_MODULE = "megatron.energon."
WRAPPED = "dataloader_state_dict"
"""Key under which Megatron-LM and Megatron Bridge save the state."""
_MOST_WORKERS = 1024


def read(state: object) -> LoaderState | None:
    """Return the position in a state; None for a state of another kind."""
    if isinstance(state, dict):
        state = state.get(WRAPPED)
    if not isinstance(state, Made) or not isinstance(state.by, Global):
        return None
    if state.by.name != _CLASS or not state.by.module.startswith(_MODULE):
        return None
    workers = value_at(state, "worker_states")
    states = workers[:_MOST_WORKERS] if isinstance(workers, list) else []
    counts = [_batches(worker) for worker in states]
    known = [count for count in counts if count is not None]
    batches = sum(known) if known and len(known) == len(counts) else None
    size = count_at(state, "micro_batch_size")
    return LoaderState(
        kind="Energon",
        batches=batches,
        samples=None if batches is None or size is None else batches * size,
        is_total=True,
        workers=0 if _is_without_processes(states) else len(states),
        order=() if batches is None else (batches,),
        is_strict=True,
        is_lockstep=True,
    )


def _is_without_processes(states: list[object]) -> bool:
    return len(states) == 1 and count_at(states[0], "_sample_index") is not None


def _batches(worker: object) -> int | None:
    """Return the batches of one process; a process that has yielded none has no checkpoint."""
    own = count_at(worker, "_sample_index")
    if own is not None:
        return own
    offset, saved = count_at(worker, "offset"), count_at(worker, "state", "sample_index")
    if offset is None:
        return None
    return offset if value_at(worker, "state") is None else _sum(offset, saved)


def _sum(offset: int, saved: int | None) -> int | None:
    return None if saved is None else offset + saved
