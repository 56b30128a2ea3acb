"""The storage of one of several machines: recorded there, divided among its processes, and replayed here."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from posixpath import basename, normpath, relpath
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.errors import UsageError
from ckpttool.core.storage.base import (
    ByteSource,
    Entry,
    Kind,
    LostLinkError,
    NotRegularError,
    OverLimitError,
    PassedOn,
    Storage,
)

Failure: TypeAlias = tuple[str, int]
"""The name of the error's class, and the error number; never the error text, which may be in a different language."""

ENTRIES, KIND, STAMP, FILE, OPEN = "entries", "kind", "stamp", "file", "open"
"""The kinds of requests that may have failed."""


@dataclass(slots=True)
class Answers:
    """All answers of a storage. Paths are relative to the tree's root; paths above the root begin with `..`."""

    entries: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    """Entries of each listed folder, sorted by name."""
    stamps: dict[str, FileStamp] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    """Contents of small files that were read completely."""
    pieces: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """The ranges of other files that were read, by offset; shorter than requested at the end of a file."""
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)
    """Failures by request and path."""
    divided: dict[str, str] = field(default_factory=dict)
    """For folders whose files were divided among processes: a hash of all names, by path."""
    by_host: dict[str, tuple[tuple[str, bytes], ...]] = field(default_factory=dict)
    """For records that each machine may have for itself, by path: the content, by the machine's name.

    This attribute is never written to a part: it is known only when the parts are combined.
    """


class RecordedSource:
    """A file on a different machine, of which only the ranges that were read there can be read."""

    __slots__ = ("_path", "_pieces", "_shown", "stamp")

    def __init__(self, path: str, stamp: FileStamp, pieces: Mapping[int, bytes], report: ShardReport | None) -> None:
        """Store the file's stamp, the ranges that were read, and the report on the file."""
        self._path, self.stamp, self._pieces, self._shown = path, stamp, pieces, report

    @property
    def shown(self) -> ShardReport | None:
        """The report on the file, unless bytes were recorded, which show more."""
        return None if self._pieces else self._shown

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only at the end of the file.

        Raises:
            OSError: The bytes were not read on the file's machine.
        """
        end = min(offset + length, self.stamp.size)
        if end <= offset:
            return b""
        for begin, data in self._pieces.items():
            if begin <= offset and end <= begin + len(data):
                return data[offset - begin : end - begin]
        raise not_recorded(self._path)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return the number of bytes read."""
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class RecordedStorage:
    """A folder of a tree that was checked on a different machine."""

    def __init__(
        self,
        root: str,
        answers: Answers,
        inner: str,
        report_of: Callable[[str], ShardReport | None] = lambda path: None,  # noqa: ARG005
    ) -> None:
        """Store the recorded answers.

        Args:
            root: The path of this folder, for `open_storage`.
            answers: The answers about the tree.
            inner: This folder by its path relative to the tree's root; empty for the root itself.
            report_of: Returns the report on a shard.
        """
        self.root = root
        self._answers = answers
        self._inner = inner
        self._shown = report_of
        self._kinds: dict[str, dict[str, Kind]] = {}

    def _path(self, path: str) -> str:
        return _inside(self._inner, path) if self._inner else path  # every file of a large tree passes here

    def _fail(self, request: str, path: str) -> None:
        failure = self._answers.failures.get((request, path))
        if failure is not None:
            raise _raised(failure, f"{self.root}/{path}")

    def entries(self, folder: str) -> list[Entry]:
        """List a folder."""
        path = self._path(folder)
        self._fail(ENTRIES, path)
        entries = self._answers.entries.get(path)
        if entries is None:
            kind = self._kind(path)
            if kind is Kind.FOLDER:
                raise not_recorded(path)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return list(entries)

    def kind(self, path: str) -> Kind:
        """Return the kind of a path."""
        kind = self._kind(self._path(path))
        if kind is Kind.LOST:
            raise _raised((LostLinkError.__name__, errno.ENOENT), path)
        return kind

    def _kind(self, path: str) -> Kind:
        answers = self._answers
        if path in answers.entries:
            return Kind.FOLDER
        self._fail(KIND, path)
        if path in answers.stamps or path in answers.files or path in answers.pieces:
            return Kind.FILE
        if path in {"", ".."}:
            self._fail(ENTRIES, path)
            if path == ".." and "" in answers.entries:
                return Kind.FOLDER
            raise _absent(path)
        folder = path.rpartition("/")[0]
        kinds = self._kinds.get(folder)
        if kinds is None:
            self._fail(ENTRIES, folder)
            self._fail(FILE, path)
            kinds = self._kinds[folder] = dict(answers.entries.get(folder, ()))
        kind = kinds.get(basename(path))
        if kind is None:
            raise _absent(path)
        return kind

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp at its check."""
        path = self._path(path)
        stamp = self._answers.stamps.get(path)
        if stamp is not None:
            return stamp
        self._fail(STAMP, path)
        if self._kind(path) is Kind.LOST:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._kind(path) is not Kind.FILE:
            raise _raised((NotRegularError.__name__, errno.EINVAL), path)
        raise not_recorded(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file."""
        path = self._path(path)
        content = self._answers.files.get(path)
        if content is None:
            self._fail(FILE, path)
            self._assert_file(path)
            if self.stamp(path).size > limit:
                raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
            raise not_recorded(path)
        if len(content) > limit:
            raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
        return content

    def of_each(self, path: str) -> tuple[tuple[str, bytes], ...]:
        """Return each machine's content at a path."""
        path = self._path(path)
        self._fail(FILE, path)
        return self._answers.by_host.get(path, ())

    def _assert_file(self, path: str) -> None:
        kind = self._kind(path)
        if kind is Kind.LOST:
            raise _raised((LostLinkError.__name__, errno.ENOENT), path)
        if kind is not Kind.FILE:
            raise _raised((NotRegularError.__name__, errno.EINVAL), path)

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        """Open a file for reading ranges."""
        path = self._path(path)
        self._fail(OPEN, path)
        self._assert_file(path)
        answers = self._answers
        content = answers.files.get(path)
        pieces = answers.pieces.get(path, {}) if content is None else {0: content}
        yield RecordedSource(path, self.stamp(path), pieces, self._shown(path))


def _inside(folder: str, path: str) -> str:
    """Return the path of an entry in a folder, relative to the tree's root; empty for the root itself."""
    joined = normpath(f"{folder or '.'}/{path}")
    return "" if joined == "." else joined


def not_recorded(path: str) -> OSError:
    """Return the error for a range that was not read on the file's machine."""
    return OSError(errno.ENODATA, "it was not checked on its machine", path)


def _absent(path: str) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class RecordsDifferError(OSError):
    """A record that differs between machines: the right content is unknown."""


_ERRORS: dict[str, tuple[type[OSError], str]] = {
    LostLinkError.__name__: (LostLinkError, "a broken link"),
    NotRegularError.__name__: (NotRegularError, "not a regular file"),
    OverLimitError.__name__: (OverLimitError, "more bytes than such a file can have"),
    RecordsDifferError.__name__: (RecordsDifferError, "the machines have different records"),
}
"""The errors that keep their class, with their texts; any other error becomes an `OSError` with its number."""

FAILURES = frozenset({OSError.__name__, *_ERRORS})
"""Names of the error classes that an answer may be."""

DIFFERENT: Failure = (RecordsDifferError.__name__, errno.EBADMSG)
"""The answer for a record that differs between machines."""


def failure_of(error: OSError) -> Failure:
    """Convert an `OSError` to the `Failure` that a part records for it."""
    kinds = (name for name, (error_class, _) in _ERRORS.items() if isinstance(error, error_class))
    return next(kinds, OSError.__name__), error.errno or errno.EIO


def _raised(failure: Failure, path: str) -> OSError:
    """Return the error for a failure, with a message in English."""
    kind, number = failure
    if kind not in _ERRORS:
        return OSError(number, os.strerror(number), path)
    error_class, words = _ERRORS[kind]
    if error_class is LostLinkError and number == errno.ELOOP:
        words = "a circular link"
    return error_class(number, words, path)


_OPENED: dict[str, Callable[[str, str], Storage]] = {}
"""For each key, the function that opens roots; the function takes the root and the path after the key."""


def root_of_key(scheme: str, key: str, path: str) -> str:
    """Return the root for a path after a key; the root has at least two parent folders, even for `.` and `../x`."""
    return f"{_begin(scheme, key)}{_placed(path)}"


def lend(scheme: str, key: str, open_inner: Callable[[str, str], Storage]) -> None:
    """Make `open_storage` use a function for roots that begin with a key, until the next call for that key."""
    _OPENED[_begin(scheme, key)] = open_inner


def take_back(scheme: str, key: str) -> None:
    """Undo `lend` for roots that begin with a key."""
    _OPENED.pop(_begin(scheme, key), None)


def opened(root: str) -> Storage:
    """Open a root that begins with a key.

    Raises:
        UsageError: There is no function for the key.
    """
    begin, _, path = root.partition("!")
    open_inner = _OPENED.get(f"{begin}!")
    if open_inner is None:
        raise UsageError(f"{root}: its meaning is unknown; give the folder with the parts as it is")
    return open_inner(root, path)


def inner_of(path: str, tree: str) -> str:
    """Return the path after a key, relative to the root of the tree; empty for the root itself."""
    inner = relpath(f"/{path.strip('/')}", _placed(tree))
    return "" if inner == "." else inner


def _begin(scheme: str, key: str) -> str:
    """Return the beginning of a root: the key, encoded as one word that ends in its only `!`."""
    return f"{scheme}://{quote(key, safe='', errors='surrogateescape')}!"


def _placed(path: str) -> str:
    """Return an absolute path with enough parents for any search above a tree."""
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
    return "/".join(["", *([] if path.startswith("/") else _ABOVE[len(parts) :]), *parts])


_ABOVE = ("-", "-", "-")
"""Stand-ins for the folders above a relative root: the tree's folder, its output folder, and the folder above."""


class NotingStorage:
    """A storage that records a different storage's answers."""

    def __init__(self, root: str, storage: Storage, answers: Answers, inner: str) -> None:
        """Set the storage to record, and the destination of its answers.

        Args:
            root: The path of the storage on this machine.
            storage: The storage that answers.
            answers: All answers so far.
            inner: The path of the storage's root relative to the tree's root; empty for the tree's root.
        """
        self.root = root
        self._storage = storage
        self._answers = answers
        self._inner = inner

    @contextmanager
    def _noting(self, request: str, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise  # a missing file shows in the listing of its folder
        except OSError as error:
            self._answers.failures[request, path] = failure_of(error)
            raise

    def entries(self, folder: str) -> list[Entry]:
        """List a folder."""
        path = _inside(self._inner, folder)
        with self._noting(ENTRIES, path):
            entries = self._storage.entries(folder)
        self._answers.entries[path] = tuple(sorted(entries, key=lambda entry: entry.name))
        return entries

    def kind(self, path: str) -> Kind:
        """Return the kind of a path."""
        inner = _inside(self._inner, path)
        with self._noting(KIND, inner):
            kind = self._storage.kind(path)
        if inner.startswith("..") and kind is Kind.FILE:  # folders above the tree are not listed
            self.stamp(path)
        return kind

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp."""
        inner = _inside(self._inner, path)
        with self._noting(STAMP, inner):
            stamp = self._answers.stamps[inner] = self._storage.stamp(path)
        return stamp

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file."""
        inner = _inside(self._inner, path)
        with self._noting(FILE, inner):
            content = self._answers.files[inner] = self._storage.small_file(path, limit=limit)
        return content

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        """Open a file for reading ranges."""
        inner = _inside(self._inner, path)
        with ExitStack() as opened_file:
            with self._noting(OPEN, inner):
                source = opened_file.enter_context(self._storage.open(path))
            self._answers.stamps.setdefault(inner, source.stamp)
            yield _NotingSource(source, self._answers.pieces.setdefault(inner, {}))


class _NotingSource:
    """An open file that records the ranges that are read."""

    __slots__ = ("_pieces", "_source", "stamp")

    def __init__(self, source: ByteSource, pieces: dict[int, bytes]) -> None:
        self._source, self._pieces, self.stamp = source, pieces, source.stamp

    def read(self, offset: int, length: int) -> bytes:
        data = self._source.read(offset, length)
        if len(data) > len(self._pieces.get(offset, b"")):
            self._pieces[offset] = data
        return data

    def read_into(self, offset: int, buffer: memoryview) -> int:
        length = self._source.read_into(offset, buffer)
        if length > len(self._pieces.get(offset, b"")):
            self._pieces[offset] = bytes(buffer[:length])
        return length


class Divided(NamedTuple):
    """One process's share of a folder."""

    mine: list[Entry]
    """The entries for this process: its share, and all entries that are not divided."""
    names: list[str] | None
    """All divided names, sorted; None if no names are divided. If a process sees other names, its disk is different."""


Mine: TypeAlias = "Callable[[str, list[Entry]], Divided]"
"""A function that selects the entries for this process, given a folder's path relative to the tree's root and its
entries.
"""


def by_folder(sign: str, index: int, count: int) -> Mine:
    """Divide a tree in which each rank has a folder: process k mod count checks folder k.

    Args:
        sign: The name of such a folder, `rank_N/`, in which `N` is its number.
        index: Number of this process, from 0.
        count: Number of processes.
    """
    begin, _, end = sign.rstrip("/").partition("N")
    pattern = re.compile(re.escape(begin) + "([0-9]{1,18})" + re.escape(end))

    def mine(folder: str, entries: list[Entry]) -> Divided:
        if folder:
            return Divided(entries, None)
        own_entries, names = [], []
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if match is not None:
                names.append(entry.name)
            if match is None or int(match[1]) % count == index:
                own_entries.append(entry)
        return Divided(own_entries, sorted(names))

    return mine


def by_file(suffixes: frozenset[str], index: int, count: int) -> Mine:
    """Divide a tree in which ranks share folders: process k mod count checks the k-th shard of a folder, by name.

    Args:
        suffixes: Suffixes of shards' names; every process reads all other files, which are records.
        index: Number of this process, from 0.
        count: Number of processes.
    """

    def mine(folder: str, entries: list[Entry]) -> Divided:
        del folder
        files = (entry.name for entry in entries if entry.kind is Kind.FILE)
        shards = sorted(name for name in files if name.rpartition(".")[2] in suffixes)
        others = {*shards} - {*shards[index::count]}
        return Divided([entry for entry in entries if entry.name not in others], shards or None)

    return mine


class SharedOut(PassedOn):
    """A storage backend that lists only one process's entries; all processes see the same disk."""

    def __init__(self, storage: Storage, mine: Mine, inner: str, divided: dict[str, str]) -> None:
        """Set the complete storage.

        Args:
            storage: The complete storage.
            mine: Selects the files to check.
            inner: The path of the storage's root relative to the tree's root.
            divided: Destination for a hash of the divided names, by folder.
        """
        super().__init__(storage)
        self._mine = mine
        self._inner = inner
        self._divided = divided

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, excluding the entries of other processes."""
        entries = self._storage.entries(folder)
        inner = _inside(self._inner, folder)
        if inner == ".." or inner.startswith("../"):
            return entries
        divided = self._mine(inner, entries)
        if divided.names is not None:
            from xxhash import xxh3_64_hexdigest

            self._divided[inner] = xxh3_64_hexdigest("\0".join(divided.names).encode("utf-8", "surrogateescape"))
        return divided.mine
