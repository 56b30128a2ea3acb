"""The length of an epoch, according to the saves of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping


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
