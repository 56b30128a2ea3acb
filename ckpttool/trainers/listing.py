"""The names in a folder, and in some of the folders in it: what a layout is told by. No file is opened."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from heapq import nlargest
from itertools import islice, takewhile
from operator import itemgetter

from ckpttool.domain.frozen import dataclass
from ckpttool.storage.base import Entry, Kind, Storage

MOST_LOOKED_INTO = 8
"""Folders of one kind: a tree may hold thousands of saves, and they look alike."""


def _unseen(folder: str) -> frozenset[str]:
    """Show nothing of any folder."""
    del folder
    return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The names directly in a folder, sorted; nothing has been opened."""

    entries: tuple[Entry, ...]
    names_in: Callable[[str], frozenset[str]] = _unseen
    """Lists a folder in it, which may raise an OSError."""

    def beginning(self, start: str) -> tuple[Entry, ...]:
        """Return the entries whose names begin so: found without a look at thousands of others."""
        first = bisect_left(self.entries, (start,))
        return tuple(takewhile(lambda entry: entry.name.startswith(start), islice(self.entries, first, None)))

    def inside(self, pattern: str) -> Iterator[frozenset[str]]:
        """Yield the names in each of the folders with such a name: a few, those with the highest numbers first.

        Raises:
            OSError: After all others, where one cannot be listed: what it holds is not known.
        """
        folders = [entry.name for entry in self.entries if entry.kind is Kind.FOLDER]
        unread: OSError | None = None
        for folder in nlargest(MOST_LOOKED_INTO, (name for name in folders if re.fullmatch(pattern, name)), _numbers):
            try:
                names = self.names_in(folder)
            except OSError as error:
                unread = unread or error
            else:
                yield names
        if unread is not None:
            raise unread

    def alone(self, name: str) -> Listing:
        """Return it as if it held this and nothing else."""
        return replace(self, entries=tuple(entry for entry in self.beginning(name) if entry.name == name))


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall("[0-9]{1,18}", name)]


def list_root(storage: Storage) -> Listing:
    """List a folder, sorted by name.

    Raises:
        OSError: It cannot be listed.
    """

    @cache  # several layouts ask for the same
    def names_in(folder: str) -> frozenset[str]:
        return frozenset(entry.name for entry in storage.entries(folder))

    return Listing(entries=tuple(sorted(storage.entries(""), key=itemgetter(0))), names_in=names_in)
