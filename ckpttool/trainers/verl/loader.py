"""The counts in a StatefulDataLoader's state: the batches and samples yielded in the current epoch.

Source: stateful_dataloader.py of torchdata 0.11; a loader with its own processes counts them elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ckpttool.core.formats.torch.plain import integer_at, value_at


def batches_in(state: object) -> int | None:
    """Return the number of batches yielded in the epoch; None if the state does not show it.

    Args:
        state: The contents of the file, apart from its tensors.
    """
    since, last = integer_at(state, "_steps_since_snapshot"), integer_at(state, "_snapshot", "_snapshot_step")
    return integer_at(state, "_num_yielded") if since is None or last is None else last + since


def samples_in(state: object) -> int | None:
    """Return the number of samples yielded in the epoch; None if the state does not show it.

    The number is for one data-parallel rank. A state that is older than its last batch does not show it.
    """
    if not has_processes(state):
        return integer_at(state, "_sampler_iter_state", "samples_yielded")
    if integer_at(state, "_steps_since_snapshot") != 0:
        return None
    return integer_at(state, "_snapshot", "_main_snapshot", "_sampler_iter_state", "samples_yielded")


def has_processes(state: object) -> bool:
    """Return whether the loader had its own processes."""
    return value_at(state, "_snapshot") is not None


def processes_in(state: object) -> int | None:
    """Return the loader's `num_workers`, without which it cannot load the state; None if the state does not show it."""
    return integer_at(state, "_snapshot", "_main_snapshot", "_num_workers") if has_processes(state) else 0


def epoch_length(counts: Mapping[int, int]) -> int | None:
    """Return the number of batches per epoch; None if the saves do not determine it.

    Without the batches of its own epoch, each save's step is a whole number of epochs.

    Args:
        counts: Number of batches that each save had read in its epoch, by its step.
    """
    whole_epochs = [step - count for step, count in counts.items()]
    batches = math.gcd(*whole_epochs)
    least = max(counts.values(), default=0)
    if batches <= 0 or least <= 0 or min(whole_epochs) < 0:
        return None
    lengths = [batches // epochs for epochs in range(1, batches // least + 1) if batches % epochs == 0]
    return lengths[0] if len(lengths) == 1 else None


def fits_no_epoch(counts: Mapping[int, int]) -> bool:
    """Return whether no length of an epoch explains the counts of all saves.

    Args:
        counts: Number of batches that each save had read in its epoch, by its step.
    """
    whole_epochs = [step - count for step, count in counts.items()]
    batches = math.gcd(*whole_epochs)
    return min(whole_epochs, default=0) < 0 or 0 < batches < max(counts.values(), default=0)
