"""Whether a save is the one that was marked, or was written again under the same names."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.storage.base import Storage
from ckpttool.marks.model import MarkState, Witness
from ckpttool.marks.record import MOST_WITNESSES

_PIECE = 1 << 16
"""Size in bytes of each of the three pieces in a sample. The middle of a large shard has weights."""


def witnesses_of(checkpoint: Checkpoint, storage: Storage) -> tuple[Witness, ...]:
    """Return the files by which a save is recognized later: at most eight, spread over its shards.

    Raises:
        OSError: A file cannot be read.
    """
    shards = checkpoint.shards
    count = min(len(shards), MOST_WITNESSES)
    paths = [shards[place * len(shards) // count].path for place in range(count)]
    return tuple(_witness(storage, path) for path in paths)


def state_of(witnesses: Iterable[Witness], storage: Storage) -> MarkState:
    """Return whether the files are those that were marked.

    A file with the same size and time is the same. A copy of a tree may have other times: then samples of the content
    decide.
    """
    states = {_state(witness, storage) for witness in witnesses} or {MarkState.COUNTS}
    worst_first = (MarkState.STALE, MarkState.UNKNOWN, MarkState.COUNTS, MarkState.ABSENT)
    return next(state for state in worst_first if state in states)


def _state(witness: Witness, storage: Storage) -> MarkState:
    try:
        stamp = storage.stamp(witness.path)
        if stamp.size != witness.size:
            return MarkState.STALE
        if stamp.modified_ns is not None and stamp.modified_ns == witness.modified_ns:
            return MarkState.COUNTS
        return MarkState.COUNTS if _sample(storage, witness.path) == witness.sample else MarkState.STALE
    except FileNotFoundError:
        return MarkState.ABSENT
    except OSError:
        return MarkState.UNKNOWN


def _witness(storage: Storage, path: str) -> Witness:
    stamp = storage.stamp(path)
    return Witness(path=path, size=stamp.size, modified_ns=stamp.modified_ns, sample=_sample(storage, path))


def _sample(storage: Storage, path: str) -> str:
    from xxhash import xxh3_128

    hashed = xxh3_128()
    with storage.open(path) as source:
        size = source.stamp.size
        for offset in (0, max(0, size // 2 - _PIECE // 2), max(0, size - _PIECE)):
            hashed.update(source.read(offset, _PIECE))
    return hashed.hexdigest()
