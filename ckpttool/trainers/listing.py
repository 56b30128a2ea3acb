"""The names in a folder, and in some of its subfolders, which identify a layout.

Only the first bytes of a file, or the plain values of a torch file, are read, and only on request.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from heapq import nlargest
from operator import itemgetter
from typing import TypeVar

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage.base import Entry, Kind, Storage

MOST_LOOKED_INTO = 8
"""Maximum number of folders or files of one kind to open, because a tree may contain thousands of similar saves."""

HEAD_BYTES = 1024
"""Number of bytes to read from a file: enough for all formats' signatures, and for the first names in a torch file."""

RECORD_BYTES = 4 << 20
"""Maximum bytes of a record that identifies a tree's trainer; a record of several thousand slices has 1 MB."""

_MOST_SORTED = 1000
"""Maximum number of names to sort by number; if there are more, only an alphabetical sample is sorted."""

_ANY = "(?s:.*)"

Seen = TypeVar("Seen")


def _unseen(folder: str) -> frozenset[str]:
    del folder
    return frozenset()


def _unread(file: str) -> bytes:
    del file
    return b""


def _without_record(file: str) -> bytes | None:
    del file
    return None


def _without_values(file: str) -> object:
    del file
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The names directly in a folder, sorted, before anything has been opened."""

    entries: tuple[Entry, ...]
    names_in: Callable[[str], frozenset[str]] = _unseen
    """Lists a subfolder; may raise an OSError."""
    head: Callable[[str], bytes] = _unread
    """Reads the first `HEAD_BYTES` bytes of a file in this folder; may raise an OSError."""
    record: Callable[[str], bytes | None] = _without_record
    """Reads a complete record in one of the subfolders; None if the record is large, or cannot be read."""
    values: Callable[[str], object] = _without_values
    """Reads the plain values in a torch file of this folder; None for any other file, or if it cannot be read."""

    def beginning(self, start: str) -> tuple[Entry, ...]:
        """Return the entries with this prefix, without scanning thousands of other names."""
        if not start:
            return self.entries
        after = start[:-1] + chr(ord(start[-1]) + 1)
        return self.entries[bisect_left(self.entries, (start,)) : bisect_left(self.entries, (after,))]

    def folders(self, start: str = "") -> Iterator[str]:
        """Yield the names of folders with this prefix, and of dangling links with this prefix."""
        return (entry.name for entry in self.beginning(start) if entry.kind in {Kind.FOLDER, Kind.LOST})

    def has(self, name: str) -> bool:
        """Return whether there is an entry with this name."""
        return any(entry.name == name for entry in self.beginning(name)[:1])

    def inside(
        self, pattern: str = _ANY, *, most: int | None = MOST_LOOKED_INTO
    ) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the matching folders with the names in them, highest numbers first.

        Args:
            pattern: Pattern for the complete name; by default, any name except that of ckpttool's own folder.
            most: Number of folders to search. None searches all of them in the order of their names, for the case that
                the highest are empty.

        Raises:
            OSError: A folder cannot be listed, so its contents are unknown; raised after all other folders.
        """
        return self._read_all(Kind.FOLDER, pattern, most, self.names_in)

    def heads(self, pattern: str) -> Iterator[tuple[str, bytes]]:
        """Yield some matching files with their first bytes, highest numbers first.

        Args:
            pattern: Pattern for the complete name.

        Raises:
            OSError: A file cannot be read; raised after all other files.
        """
        return self._read_all(Kind.FILE, pattern, MOST_LOOKED_INTO, self.head)

    def newest_files(self, may_be: Callable[[str], bool], *, most: int = MOST_LOOKED_INTO) -> list[str]:
        """Return some of the files, highest numbers first, and as many of those without a number.

        Args:
            may_be: Returns whether a name matches.
            most: Maximum number of files of each kind.
        """
        names = [name for name, kind in self.entries if kind is Kind.FILE and may_be(name)]
        numbered = nlargest(most, filter(numbers_in, names), numbers_in)
        return [*numbered, *[name for name in names if not numbers_in(name)][:most]]

    def alone(self, name: str) -> Listing:
        """Return the listing as if the folder contained only this entry."""
        return replace(self, entries=tuple(entry for entry in self.beginning(name) if entry.name == name))

    def _read_all(
        self, kind: Kind, pattern: str, most: int | None, read: Callable[[str], Seen]
    ) -> Iterator[tuple[str, Seen]]:
        start, end = _literal(pattern)
        # A dozen layouts check thousands of names: the literal end is compared before the pattern.
        names = [name for name, entry_kind in self.beginning(start) if entry_kind is kind and name.endswith(end)]
        if pattern != _ANY:
            names = list(filter(re.compile(pattern).fullmatch, names))
        if OWN_FOLDER in names:
            names.remove(OWN_FOLDER)
        if most is not None:
            names = nlargest(most, names[:: 1 + len(names) // _MOST_SORTED], numbers_in)
        unread: OSError | None = None
        for name in names:
            try:
                content = read(name)
            except OSError as error:
                unread = unread or error
            else:
                yield name, content
        if unread is not None:
            raise unread


def _literal(pattern: str) -> tuple[str, str]:
    """Return the fixed prefix and suffix of a pattern, so that names that cannot match are skipped cheaply."""
    if "|" in pattern:
        return "", ""
    start = re.match(r"[A-Za-z_-]*(?=[\[(]|\Z)", pattern)
    end = re.search(r"\\(\.[a-z]+)\Z", pattern)
    return "" if start is None else start[0], "" if end is None else end[1]


def numbers_in(name: str) -> list[int]:
    """Return the numbers in a name, in order; a number that is too long for a step is split."""
    return [int(digits) for digits in re.findall("[0-9]{1,18}", name)]


def list_root(storage: Storage) -> Listing:
    """List a folder, sorted by name.

    Raises:
        OSError: The folder cannot be listed.
    """
    return _listing(storage, tuple(sorted(storage.entries(""), key=itemgetter(0))))


def show_alone(storage: Storage, entry: Entry) -> Listing:
    """Return a listing that contains only this entry, without listing the folder."""
    return _listing(storage, (entry,))


def _listing(storage: Storage, entries: tuple[Entry, ...]) -> Listing:
    @cache  # several layouts request the same folder
    def names_in(folder: str) -> frozenset[str]:
        return frozenset(entry.name for entry in storage.entries(folder))

    @cache
    def head(file: str) -> bytes:
        with storage.open(file) as source:
            return source.read(0, HEAD_BYTES)

    @cache
    def record(file: str) -> bytes | None:
        try:
            return storage.small_file(file, limit=RECORD_BYTES)
        except OSError:  # reported by the check of every save
            return None

    @cache
    def values(file: str) -> object:
        # Few folders have torch files that no other layout claims.
        from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
        from ckpttool.core.formats.torch.plain import is_saved, plain_values

        try:
            if not is_saved(head(file)):
                return None
            with storage.open(file) as source:
                return plain_values(source)
        except (OSError, BrokenPickleError):  # reported by the check of every save
            return None

    return Listing(entries=entries, names_in=names_in, head=head, record=record, values=values)
