"""States of data loaders among the values of a DCP folder, as pickles or as plain values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.loader_state import SavedLoader
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.core.formats.torch.dcp import MOST_METADATA_BYTES
from ckpttool.trainers.loader_states.files import MOST_LOADERS, UNREAD, pickled_loader
from ckpttool.trainers.torch_dcp.store import read_store, value_slices, values_of

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.storage.base import Storage

_MOST_DEPTH = 8
_LOADER = r"(?:.*[._])?(?:train_)?data_?loader(?:s|_state)?(?:\.(?:dp_)?rank_(?P<rank>[0-9]{1,7}))?"


def loaders(storage: Storage, inventory: Inventory, checkpoint: Checkpoint) -> list[SavedLoader]:
    """Return the states under names such as `dataloader.dp_rank_0`, as torchtitan saves them."""
    del inventory
    return loaders_in_store(storage, checkpoint.name)


def loaders_in_store(storage: Storage, folder: str) -> list[SavedLoader]:
    """Return the states in a folder of slices; a folder that cannot be read has none, and `verify` reports it."""
    try:
        store = read_store(storage, folder, most=MOST_METADATA_BYTES)
    except OSError:
        return []
    places = value_slices(store)
    owners = {name: _owner(name) for name in places}
    chosen = dict(sorted((name, place) for name, place in places.items() if owners[name])[:MOST_LOADERS])
    values: dict[str, object] = {}
    paths: dict[str, str] = {}
    for name, value in values_of(storage, folder, chosen).items():
        owner = owners[name]
        paths.setdefault(owner, f"{folder}/{chosen[name].path}" if folder else chosen[name].path)
        if owner == name:
            values[owner] = value
        else:
            _put(values, owner, name.removeprefix(f"{owner}.").split("."), value)
    saved = [
        SavedLoader(path=f"{folder}/{place.path}" if folder else place.path, key=name, problem=UNREAD)
        for name, place in chosen.items()
        if owners[name] == name and name not in values
    ]
    for owner, value in values.items():
        match = re.fullmatch(_LOADER, owner)
        number = None if match is None else match["rank"]
        rank = Rank(int(number)) if number is not None and int(number) < MAX_RANKS else None
        loader = pickled_loader(value, path=paths[owner], key=owner, rank=rank)
        if loader.state is not None or owner in places:  # other values under such a name need not be a state
            saved.append(loader)
    return sorted(saved, key=lambda loader: (loader.rank or 0, loader.key))


def _owner(name: str) -> str:
    """Return the longest beginning of a value's name that is a loader's name; empty if no beginning is one.

    A state that was saved without pickling is divided into its values: `dataloader._num_yielded`.
    """
    if "loader" not in name:  # a save may have a hundred thousand values
        return ""
    parts = name.split(".")
    for count in range(min(len(parts), _MOST_DEPTH), 0, -1):
        beginning = ".".join(parts[:count])
        if re.fullmatch(_LOADER, beginning):
            return beginning
    return ""


def _put(values: dict[str, object], owner: str, keys: list[str], value: object) -> None:
    """Put a value back into the dictionaries that torch divided; a list remains a dictionary by number."""
    inner = values.setdefault(owner, {})
    for key in keys[:-1]:
        if not isinstance(inner, dict):
            return
        inner = inner.setdefault(key, {})
    if isinstance(inner, dict):
        inner[keys[-1]] = value
