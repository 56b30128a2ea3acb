"""How many batches an epoch has, as the training log beside a tree tells it: `Epoch:[e/E], step:[n/N]`."""

from __future__ import annotations

import os
from contextlib import suppress

from ckpttool.core.storage import open_storage
from ckpttool.trainers.mindformers.logs.places import MindFormersLogs
from ckpttool.trainers.mindformers.logs.text import POSITION

TAIL_BYTES = 4 << 20
"""How much of a log's end is searched: ten thousand steps or more."""


def logged_epoch(root: str, *, step: int, epoch: int | None) -> int | None:
    """Return the batches an epoch that the log's last line about a save's step tells; None where there is none.

    Batches are of the size that the save has, for the line is about the step that made it.

    Args:
        root: The folder of the checkpoints, in whose neighbourhood the log lies.
        step: Steps done, as the save counts them.
        epoch: The save's own number of epochs, which may be one of sinks.

    Source:
        MFLossMonitor (1.3.2 to 2.1.0): n is always the step within N batches. With sinks e follows from the step, too;
        without, it is the epoch that MindSpore counts and the save holds.
    """
    ranks = MindFormersLogs().near(root)
    for path in reversed(ranks[0] if ranks else ()):
        for match in reversed([*POSITION.finditer(_tail(path))]):
            logged, within, size = map(int, match.groups())
            if size and (step - 1) % size + 1 == within and logged in {epoch, (step - 1) // size + 1}:
                return size
    return None


def _tail(path: str) -> bytes:
    """Return the end of a file, or nothing where it cannot be read."""
    folder, name = os.path.split(path)
    with suppress(OSError), open_storage(folder).open(name) as source:
        begin = max(0, source.stamp.size - TAIL_BYTES)
        return source.read(begin, TAIL_BYTES)
    return b""
