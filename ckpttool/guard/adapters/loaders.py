"""The items of torch's data loaders, with their loader, in the order in which the training loop receives them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader


class Loaders:
    """Observer of all data loaders of a process. Loaders are numbered in the order of construction."""

    def __init__(self, drew: Callable[[int, Any], None], begins: Callable[[int], None]) -> None:
        """Store the callbacks.

        Args:
            drew: Receives a loader's number and each of its items.
            begins: Receives a loader's number when one of its iterators begins.
        """
        self._drew, self._begins = drew, begins
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._count = 0
        self._watched: set[Any] = set()

    def made(self, loader: Any) -> None:
        """Number a new loader, and wrap the iterator of its class."""
        if loader not in self._numbers:
            self._numbers[loader] = self._count
            self._count += 1
        self._watch(_iterating(type(loader)))

    def _watch(self, owner: Any) -> None:
        if owner in self._watched:
            return
        self._watched.add(owner)
        original = owner.__iter__

        @functools.wraps(original)
        def watched(loader: Any) -> Any:
            items = original(loader)
            # A subclass iterates over its base class: only what the subclass returns reaches the loop.
            if loader not in self._numbers or _iterating(type(loader)) is not owner:
                return items
            self._begins(self._numbers[loader])
            return _Items(items, functools.partial(self._drew, self._numbers[loader]))

        owner.__iter__ = watched


class _Items:
    """Iterator that reports each item before it returns it, and otherwise behaves like the original one."""

    def __init__(self, items: Any, drew: Callable[[Any], None]) -> None:
        self._items, self._drew_item = items, drew

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        item = next(self._items)
        self._drew_item(item)
        return item

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


def _iterating(kind: type) -> Any:
    """Return the class whose `__iter__` a loader of this class uses."""
    return next((owner for owner in kind.__mro__ if "__iter__" in vars(owner)), DataLoader)
