"""States of OLMo-core's data loaders: the batches of the epoch, which all ranks count together.

Source:
    data/data_loader.py of ai2-olmo-core 3.0.0, and its saves. Epochs are counted from 1.
"""

from __future__ import annotations

from ckpttool.core.domain.loader_state import LoaderState
from ckpttool.core.formats.torch.plain import text_at
from ckpttool.trainers.loader_states.counts import count_at

_KEYS = {"batches_processed", "epoch", "dataset_fingerprint"}
_OF_THE_DATA = ("dataset_fingerprint", "dataset_type")


def read(state: object) -> LoaderState | None:
    """Return the position in a state; None for a state of another kind."""
    if not isinstance(state, dict) or not state.keys() >= _KEYS:
        return None
    epoch, batches = count_at(state, "epoch"), count_at(state, "batches_processed")
    tokens, length = count_at(state, "tokens_processed"), count_at(state, "sequence_length")
    # With another batch size, a resumed run converts the number of batches; the tokens still grow.
    position, unit = (batches, "batches") if tokens is None else (tokens, "tokens")
    return LoaderState(
        kind="OLMo-core",
        epoch=epoch,
        batches=batches,
        samples=None if tokens is None or not length else tokens // length,
        order=() if epoch is None or position is None else (epoch, position),
        is_strict=True,
        identity=(*(text_at(state, key) or "" for key in _OF_THE_DATA), unit, f"seed={count_at(state, 'seed')}"),
        is_lockstep=True,
    )
