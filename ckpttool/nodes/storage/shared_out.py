"""What one of several processes is to look at, where all of them see all files: the others' shards are not shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from posixpath import normpath
from typing import NamedTuple

from ckpttool.core.storage.base import Entry, Kind, PassedOn, Storage


class Divided(NamedTuple):
    """What lies in a folder, as one of several processes takes it."""

    mine: list[Entry]
    """What this one is to look at: its share, and all that is not shared out."""
    names: list[str] | None
    """All that is shared out, sorted; None where nothing is. Who sees other names here sees another disk."""


Mine = Callable[[str, list[Entry]], Divided]
"""Takes a folder's path, relative to the tree's root, and what lies there."""


def by_folder(sign: str, index: int, count: int) -> Mine:
    """Divide a tree in which each rank has a folder: folder k is looked at by process k mod count.

    Args:
        sign: What such a folder is called, `rank_N/`, with `N` for its number.
        index: Of this process, from 0.
        count: Processes.
    """
    begin, _, end = sign.rstrip("/").partition("N")
    pattern = re.compile(re.escape(begin) + "([0-9]{1,18})" + re.escape(end))

    def mine(folder: str, entries: list[Entry]) -> Divided:
        if folder:
            return Divided(entries, None)
        numbered = [(entry, pattern.fullmatch(entry.name)) for entry in entries]
        own_entries = [entry for entry, match in numbered if match is None or int(match[1]) % count == index]
        return Divided(own_entries, sorted(entry.name for entry, match in numbered if match is not None))

    return mine


def by_file(suffixes: frozenset[str], index: int, count: int) -> Mine:
    """Divide a tree in which ranks share folders: of the shards in each, by name, the k-th is of process k mod count.

    Args:
        suffixes: Of shards' names; all else, records that is, every process looks at.
        index: Of this process, from 0.
        count: Processes.
    """

    def mine(folder: str, entries: list[Entry]) -> Divided:
        del folder
        shards = sorted(entry.name for entry in entries if entry.kind is Kind.FILE and _suffix(entry.name) in suffixes)
        foreign = {name for place, name in enumerate(shards) if place % count != index}
        return Divided([entry for entry in entries if entry.name not in foreign], shards or None)

    return mine


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]


class SharedOut(PassedOn):
    """A storage that lists no more than what one process is to look at."""

    def __init__(self, storage: Storage, mine: Mine, inner: str, divided: dict[str, str]) -> None:
        """Take all of it.

        Args:
            storage: As it is.
            mine: Keeps what is to be looked at.
            inner: Its root by the path relative to the tree's.
            divided: Where a hash of the names that are shared out goes, by their folder.
        """
        super().__init__(storage)
        self._mine = mine
        self._inner = inner
        self._divided = divided

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, without what others look at."""
        entries = self._storage.entries(folder)
        path = normpath(f"{self._inner or '.'}/{folder}")
        if path == ".." or path.startswith("../"):
            return entries
        inner = "" if path == "." else path
        divided = self._mine(inner, entries)
        if divided.names is not None:
            from xxhash import xxh3_64_hexdigest

            self._divided[inner] = xxh3_64_hexdigest("\0".join(divided.names).encode("utf-8", "surrogateescape"))
        return divided.mine
