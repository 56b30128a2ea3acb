"""Data loader states in a save's files, read as plain values; nothing in them is executed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.loader_state import LoaderState, SavedLoader
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.pickle_values import read_values
from ckpttool.core.formats.torch.plain import MOST_PLAIN_BYTES, plain_values, value_at
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.loader_states import recognized, states_in, unknown_kind

if TYPE_CHECKING:
    from ckpttool.core.storage.base import Storage

MOST_LOADERS = 1024
"""Maximum number of states that are read in one save."""
UNREAD = f"not read: its pickle is incomplete, or larger than {MOST_PLAIN_BYTES >> 20} MiB"
"""Problem of a state that is not read."""


def loader_files(storage: Storage, paths: Iterable[tuple[str, Rank | None]], *key: str) -> list[SavedLoader]:
    """Read the state in each of several files.

    Args:
        storage: The tree.
        paths: The files, each with its rank.
        key: The keys under which the state is in a file; empty if the file is the state.
    """
    places = list(paths)
    saved = list(map_waiting(partial(_loader_file, storage, key), places[:MOST_LOADERS]))
    if len(places) > MOST_LOADERS:
        problem = f"not read, like {len(places) - MOST_LOADERS - 1} others: ckpttool reads {MOST_LOADERS} per save"
        path, rank = places[MOST_LOADERS]
        saved.append(SavedLoader(path=path, key=".".join(key), rank=rank, problem=problem))
    return saved


def _loader_file(storage: Storage, key: tuple[str, ...], place: tuple[str, Rank | None]) -> SavedLoader:
    path, rank = place
    name = ".".join(key)
    try:
        with storage.open(path) as source:
            values = plain_values(source)
    except BrokenPickleError:
        return SavedLoader(path=path, key=name, rank=rank, problem=UNREAD)
    except OSError as error:
        return SavedLoader(path=path, key=name, rank=rank, problem=f"cannot be read: {error.strerror or error}")
    return loader_of(value_at(values, *key), path=path, key=name, rank=rank)


def loader_of(state: object, *, path: str, key: str = "", rank: Rank | None = None) -> SavedLoader:
    """Return a loader's state, or the keys of a state of an unknown kind."""
    position = recognized(state)
    problem = unknown_kind(state) if position is None else None
    return SavedLoader(path=path, key=key, rank=rank, state=position, problem=problem)


def loaders_in(storage: Storage, path: str) -> list[SavedLoader]:
    """Return the states of known kinds in a file of any contents; a file that cannot be read has none."""
    try:
        with storage.open(path) as source:
            values = plain_values(source)
    except (OSError, BrokenPickleError):  # reported by the check of the file
        return []
    found = zip(states_in(values), range(MOST_LOADERS), strict=False)
    return [SavedLoader(path=path, key=key, state=state) for (key, state), _ in found]


def pickled_loader(data: object, *, path: str, key: str, rank: Rank | None) -> SavedLoader:
    """Return the state in a pickle inside a value, which its trainer would unpickle without any restriction.

    Args:
        data: The value: bytes, or a state itself.
        path: The file that contains the value.
        key: The name of the value.
        rank: The rank of the loader.
    """
    if not isinstance(data, bytes):
        return loader_of(data, path=path, key=key, rank=rank)
    runs = list(_run_by(data))
    if runs:
        problem = f"would run code when it is loaded: it names {', '.join(map(quoted, runs[:3]))}"
        return SavedLoader(path=path, key=key, rank=rank, problem=problem, is_unsafe=True)
    try:
        state = read_values(data)
    except BrokenPickleError:
        return SavedLoader(path=path, key=key, rank=rank, problem="not a complete pickle")
    return loader_of(state, path=path, key=key, rank=rank)


def in_epoch(state: LoaderState, epoch: int | None) -> LoaderState:
    """Return a state with the epoch that its trainer counts, so that it can be compared with that of another save."""
    if epoch is None or state.batches is None:
        return state
    return replace(state, epoch=epoch, order=(epoch, state.batches), is_strict=True)


class _Memory:
    """Bytes in memory, read like a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.stamp = FileStamp(size=ByteCount(len(data)), token=())

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        piece = self._data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)


def _run_by(data: bytes) -> Iterator[str]:
    """Yield the names in a pickle that run code, or a description of names that it hides."""
    from ckpttool.core.formats.torch.pickle_scan import PickleReader

    names = PickleReader(_Memory(data)).names(0, len(data))
    yield from names.runs
    if names.hidden:
        yield "an object whose name is computed only during loading"
