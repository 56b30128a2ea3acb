"""What one of several processes is to look at, where all of them see all files: the others' shards are not shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from posixpath import normpath

from ckpttool.storage.base import Entry, Kind, PassedOn, Storage

Mine = Callable[[str, list[Entry]], list[Entry]]
"""Of a folder's path, relative to the tree's root, and what lies there, keeps what this process is to look at."""


def by_folder(sign: str, index: int, count: int) -> Mine:
    """Divide a tree in which each rank has a folder: folder k is looked at by process k mod count.

    Args:
        sign: What such a folder is called, `rank_N/`, with `N` for its number.
        index: Of this process, from 0.
        count: Processes.
    """
    begin, _, end = sign.rstrip("/").partition("N")
    pattern = re.compile(re.escape(begin) + "([0-9]{1,18})" + re.escape(end))

    def mine(folder: str, entries: list[Entry]) -> list[Entry]:
        if folder:
            return entries
        numbered = [(entry, pattern.fullmatch(entry.name)) for entry in entries]
        return [entry for entry, found in numbered if found is None or int(found[1]) % count == index]

    return mine


def by_file(suffixes: frozenset[str], index: int, count: int) -> Mine:
    """Divide a tree in which ranks share folders: of the shards in each, by name, the k-th is of process k mod count.

    Args:
        suffixes: Of shards' names; all else, records that is, every process looks at.
        index: Of this process, from 0.
        count: Processes.
    """

    def mine(folder: str, entries: list[Entry]) -> list[Entry]:
        del folder
        shards = sorted(entry.name for entry in entries if entry.kind is Kind.FILE and _suffix(entry.name) in suffixes)
        others = {name for place, name in enumerate(shards) if place % count != index}
        return [entry for entry in entries if entry.name not in others]

    return mine


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]


class SharedOut(PassedOn):
    """A storage that lists no more than what one process is to look at."""

    def __init__(self, storage: Storage, mine: Mine, inner: str = "") -> None:
        """Take all of it.

        Args:
            storage: As it is.
            mine: Keeps what is to be looked at.
            inner: Its root by the path relative to the tree's.
        """
        super().__init__(storage)
        self._mine = mine
        self._inner = inner

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, without what others look at."""
        found = self._storage.entries(folder)
        path = normpath(f"{self._inner or '.'}/{folder}")
        if path == ".." or path.startswith("../"):
            return found
        return self._mine("" if path == "." else path, found)
