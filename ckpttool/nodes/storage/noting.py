"""Write down what a storage answers, so that it can be given again where nobody can reach it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from posixpath import normpath

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import ByteSource, Entry, Kind, Storage
from ckpttool.nodes.storage.recorded import ENTRIES, FILE, KIND, OPEN, STAMP, Answers, failure_of


class NotingStorage:
    """A storage that writes down what another one answers."""

    def __init__(self, root: str, storage: Storage, answers: Answers, inner: str) -> None:
        """Take the storage, and where its answers go.

        Args:
            root: As it is spelled here.
            storage: What is asked.
            answers: What it answered so far.
            inner: Its root by the path relative to the tree's; empty for that itself.
        """
        self.root = root
        self._storage = storage
        self._answers = answers
        self._inner = inner

    def _path(self, path: str) -> str:
        joined = normpath(f"{self._inner or '.'}/{path}")
        return "" if joined == "." else joined

    @contextmanager
    def _noting(self, request: str, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise  # what is not there shows in the listing of its folder
        except OSError as error:
            self._answers.failures[request, path] = failure_of(error)
            raise

    def entries(self, folder: str) -> list[Entry]:
        """List a folder."""
        path = self._path(folder)
        with self._noting(ENTRIES, path):
            entries = self._storage.entries(folder)
        self._answers.entries[path] = tuple(sorted(entries, key=lambda entry: entry.name))
        return entries

    def kind(self, path: str) -> Kind:
        """Tell what lies at a path."""
        inner = self._path(path)
        with self._noting(KIND, inner):
            kind = self._storage.kind(path)
        if inner.startswith("..") and kind is Kind.FILE:  # of what lies above nobody lists all
            self.stamp(path)
        return kind

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp."""
        inner = self._path(path)
        with self._noting(STAMP, inner):
            stamp = self._answers.stamps[inner] = self._storage.stamp(path)
        return stamp

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a whole record file."""
        inner = self._path(path)
        with self._noting(FILE, inner):
            content = self._answers.files[inner] = self._storage.small_file(path, limit=limit)
        return content

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        """Open a file for reading ranges."""
        inner = self._path(path)
        with self._noting(OPEN, inner):
            opened = self._storage.open(path)
            entered = opened.__enter__()
        try:
            self._answers.stamps.setdefault(inner, entered.stamp)
            yield _NotingSource(entered, self._answers.pieces.setdefault(inner, {}))
        finally:
            opened.__exit__(None, None, None)


class _NotingSource:
    """An open file of which is kept what is read of it."""

    __slots__ = ("_pieces", "_source", "stamp")

    def __init__(self, source: ByteSource, pieces: dict[int, bytes]) -> None:
        self._source, self._pieces, self.stamp = source, pieces, source.stamp

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only where the file ends."""
        data = self._source.read(offset, length)
        if len(data) > len(self._pieces.get(offset, b"")):
            self._pieces[offset] = data
        return data

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return how many bytes there were."""
        length = self._source.read_into(offset, buffer)
        if length > len(self._pieces.get(offset, b"")):
            self._pieces[offset] = bytes(buffer[:length])
        return length
