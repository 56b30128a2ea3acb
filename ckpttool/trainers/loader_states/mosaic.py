"""States of MosaicML's StreamingDataset: the samples that all ranks together have read in the epoch.

Source:
    `StreamingDataset.state_dict` and StreamingDataLoader of mosaicml-streaming 0.13, and runs of them: the epoch grows
    when its first batch is read, so a state at an epoch's end still has the old epoch. Composer saves no samples
    there, so a state without samples may be the start or the end of its epoch.
"""

from __future__ import annotations

from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.trainers.loader_states.counts import count_at

_KEYS = {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed"}
_OF_THE_ORDER = ("num_canonical_nodes", "shuffle_seed")


def read(state: object) -> LoaderState | None:
    """Return the position in a state; None for a state of another kind."""
    if not isinstance(state, dict) or not state.keys() >= _KEYS:
        return None
    epoch, samples = count_at(state, "epoch"), count_at(state, "sample_in_epoch")
    return LoaderState(
        kind="MosaicML streaming",
        epoch=epoch,
        samples=samples,
        order=() if epoch is None or not samples else (epoch, samples),
        is_strict=True,
        identity=tuple(f"{key}={count_at(state, key)}" for key in _OF_THE_ORDER),
    )
