"""States of torchtitan's text data sets: the documents of a map-style data set, or the state of an iterable one.

Source:
    hf_datasets/text_datasets.py of torchtitan 0.1 to 0.3. A data set that is read several times restarts its number of
    documents with each pass. Only a state that also counts the passes can be compared with another.
"""

from __future__ import annotations

from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.core.formats.torch.plain import value_at
from ckpttool.trainers.loader_states import hf_datasets
from ckpttool.trainers.loader_states.counts import count_at

_DOCUMENTS = "sample_idx"
_BUFFERS = frozenset({"token_buffer", "inputs_buffer"})
_OWN = _BUFFERS | {"epoch"}


def read_alone(state: object) -> LoaderState | None:
    """Return the position in a state outside a loader, where a script's own progress may have the other keys."""
    return None if not isinstance(state, dict) or _BUFFERS.isdisjoint(state) else read(state)


def read(state: object) -> LoaderState | None:
    """Return the position in a state; None for a state of another kind."""
    if not isinstance(state, dict) or _OWN.isdisjoint(state):
        return None
    inner = hf_datasets.read(value_at(state, "data"))
    if inner is None and _DOCUMENTS not in state:
        return None
    epoch, documents = count_at(state, "epoch"), count_at(state, _DOCUMENTS)
    if inner is not None:
        return LoaderState(
            kind="torchtitan's data set",
            epoch=inner.epoch,
            samples=inner.samples,
            place=inner.place,
            never_moved=inner.never_moved,
        )
    return LoaderState(
        kind="torchtitan's data set",
        epoch=epoch,
        place=None if documents is None else f"document {documents}",
        order=() if epoch is None or documents is None else (epoch, documents),
    )
