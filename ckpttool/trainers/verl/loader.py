"""The count in a StatefulDataLoader's state: the number of batches yielded in the current epoch.

Source: stateful_dataloader.py of torchdata 0.11; a loader with its own processes counts them elsewhere.
"""

from __future__ import annotations

from ckpttool.core.formats.torch.plain import integer_at


def batches_in(state: object) -> int | None:
    """Return the number of batches yielded in the epoch; None if the state does not show it.

    Args:
        state: The contents of the file, apart from its tensors.
    """
    since, last = integer_at(state, "_steps_since_snapshot"), integer_at(state, "_snapshot", "_snapshot_step")
    return integer_at(state, "_num_yielded") if since is None or last is None else last + since
