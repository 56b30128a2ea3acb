"""Interface to stored bytes: list folders, stat files, and read ranges. Each storage has its own module."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from ckpttool.core.domain.finding import Code, Finding, unknown
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import Rank


class Kind(Enum):
    """Kind of a directory entry, after following links."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A FIFO, device or socket."""
    LOST = "lost"
    """A dangling link, a loop of links, or an unreadable target, for example because a disk is not mounted."""


class NotRegularError(OSError):
    """The path is not a regular file: a FIFO or a device could block, or have no end."""

    modified_ns: int | None = None
    """Time of the last change in nanoseconds since 1970, if the complete stamp was requested."""


class LostLinkError(OSError):
    """The path is a broken link or a loop of links."""


class OverLimitError(OSError):
    """The file is larger than the limit, which exceeds any file that a trainer writes."""


class ReplacedError(OSError):
    """The file was overwritten since it was listed."""


class WithheldError(OSError):
    """A store or a server denies access."""


class Entry(NamedTuple):
    """One entry of a folder."""

    name: str
    kind: Kind


class ByteSource(Protocol):
    """Interface of an open file."""

    @property
    def stamp(self) -> FileStamp:
        """Stamp of the file when it was opened."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only at the end of the file.

        Raises:
            OSError: The disk did not answer.
        """
        ...

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return the number of bytes read."""
        ...


class Storage(Protocol):
    """Interface of a storage with checkpoints.

    Paths are POSIX and relative to `root`; an empty path is the root itself.
    """

    @property
    def root(self) -> str:
        """The folder to which all paths are relative."""
        ...

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order.

        Raises:
            LostLinkError: The path is a link whose target does not exist.
            OSError: The folder cannot be listed.
        """
        ...

    def kind(self, path: str) -> Kind:
        """Return the kind of a path, after following links.

        Raises:
            LostLinkError: The path is a link whose target does not exist.
            OSError: The path does not exist, or cannot be checked.
        """
        ...

    def stamp(self, path: str) -> FileStamp:
        """Return the stamp of a regular file, after following links; a different stamp later means a changed file.

        Raises:
            NotRegularError: The path is not a regular file.
            OSError: The path cannot be checked.
        """
        ...

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file.

        Raises:
            OverLimitError: The file has more than `limit` bytes.
            LostLinkError: The path is a link whose target does not exist.
            NotRegularError: The path is not a regular file.
            OSError: The file cannot be read.
        """
        ...

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        """Open a file for reading ranges; use it in a `with` statement.

        Raises:
            LostLinkError: The path is a link whose target does not exist.
            NotRegularError: The path is not a regular file.
            OSError: The file cannot be read.
        """
        ...


@runtime_checkable
class OfSeveral(Protocol):
    """Storage of several machines, which may have different contents at the same path."""

    def of_each(self, path: str) -> tuple[tuple[str, bytes], ...]:
        """Return each machine's name and its content of a path.

        The result is empty if there is no content or only one machine.

        Raises:
            OSError: One of the machines could not read the path.
        """
        ...


class PassedOn:
    """A storage that delegates to another storage; subclasses override some methods."""

    def __init__(self, storage: Storage) -> None:
        """Store the storage that receives all calls."""
        self.root = storage.root
        self._storage = storage

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order."""
        return self._storage.entries(folder)

    def kind(self, path: str) -> Kind:
        """Return the kind of a path, after following links."""
        return self._storage.kind(path)

    def stamp(self, path: str) -> FileStamp:
        """Return the stamp of a regular file, after following links; a different stamp later means a changed file."""
        return self._storage.stamp(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file."""
        return self._storage.small_file(path, limit=limit)

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        """Open a file for reading ranges."""
        return self._storage.open(path)


def is_there(storage: Storage, path: str) -> bool:
    """Return whether a path exists, even if it is not readable."""
    try:
        storage.kind(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


LOST_LINK_REMEDY = "mount the disk of its target, or correct the link"
_OTHER_USER: dict[type[OSError], str] = {
    PermissionError: "run ckpttool as the user of the training, or change the file's permissions",
    WithheldError: "set credentials with permission to list and read there",
}


def remedy_of(error: OSError) -> str | None:
    """Return a remedy for a storage that denies access; None if there is no known remedy."""
    return LOST_LINK_REMEDY if isinstance(error, LostLinkError) else _OTHER_USER.get(type(error))


def unreadable(path: str, error: OSError, rank: Rank | None = None) -> Finding:
    """Return a finding about a file that a storage cannot read."""
    return unknown(
        Code.UNREADABLE,
        f"cannot be read ({error.strerror or error}): unknown, not damaged",
        path=path,
        remedy=remedy_of(error),
        ranks=() if rank is None else (rank,),
    )


class ShrankError(OSError):
    """The file ended inside a range, because it was truncated during the read.

    Attributes:
        offset: First missing byte.
        expected_end: Expected end of the range, exclusive.
    """

    def __init__(self, *, offset: int, expected_end: int) -> None:
        """Store the actual and the expected end of the file."""
        super().__init__(errno.ESTALE, f"the file ends at byte {offset}, expected {expected_end}")
        self.offset = offset
        self.expected_end = expected_end
