"""Disks that misbehave, for tests of what reads them."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from random import Random

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import ByteSource, Entry, Kind, Storage
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.base import Layout, ScanOptions
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.locate import loose_file
from ckpttool.trainers.parts import layouts, recognised


class FaultyStorage:
    """A folder of which some paths answer with an error, and whose listings come in any order."""

    def __init__(self, root: str, faults: dict[str, int] | None = None, *, chance: Random | None = None) -> None:
        self.root = root
        self._inner = LocalStorage(root)
        self._faults = faults or {}
        self._chance = chance
        self.opened: list[str] = []

    def _answer(self, path: str) -> None:
        if path in self._faults:
            raise OSError(self._faults[path], os.strerror(self._faults[path]), path)

    def entries(self, folder: str) -> list[Entry]:
        self._answer(folder)
        found = sorted(self._inner.entries(folder), key=lambda entry: entry.name)
        if self._chance is not None:
            self._chance.shuffle(found)
        return found

    def kind(self, path: str) -> Kind:
        self._answer(path)
        return self._inner.kind(path)

    def stamp(self, path: str) -> FileStamp:
        self._answer(path)
        return self._inner.stamp(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        self._answer(path)
        return self._inner.small_file(path, limit=limit)

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        self._answer(path)
        self.opened.append(path)
        return self._inner.open(path)


DENIED = errno.EACCES
BROKEN = errno.EIO


def layout_of(name: str) -> Layout:
    """Return the layout that an inventory names."""
    return next(layout for layout in (*(signs.layout for signs in layouts()), loose_file()) if layout.name == name)


def scan(storage: Storage, *, sizes: bool = False, steps_per_epoch: int | None = None) -> Inventory:
    """List the tree in a storage, whatever its layout."""
    listing = list_root(storage)
    (layout,) = recognised(listing)
    return layout.scan(storage, listing, ScanOptions(sizes=sizes, steps_per_epoch=steps_per_epoch))
