"""The one seam to where bytes lie: list, stat, read a range. Each kind of place is a class beside this module."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from ckpttool.core.domain.finding import Code, Finding, unknown
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import Rank


class Kind(Enum):
    """What a directory entry is, links followed."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A FIFO, device or socket."""
    LOST = "lost"
    """A link that leads nowhere, round in a loop, or where nobody may look: a disk is not mounted, say."""


class NotRegularError(OSError):
    """The path is no regular file: a FIFO or a device could block or feed us for ever."""

    modified_ns: int | None = None
    """When it changed last, where that was asked for with the rest of its stamp."""


class LostLinkError(OSError):
    """The path is a broken link, or round in a loop."""


class OverLimitError(OSError):
    """The file is larger than anything a trainer writes there."""


class ReplacedError(OSError):
    """The file is not the one that was listed: someone wrote it again."""


class WithheldError(OSError):
    """A store or a server knows us and does not let us look, or does not know us."""


class Entry(NamedTuple):
    """One name in a folder."""

    name: str
    kind: Kind


class ByteSource(Protocol):
    """An open file."""

    @property
    def stamp(self) -> FileStamp:
        """The file's stamp when it was opened."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only where the file ends.

        Raises:
            OSError: The disk did not answer.
        """
        ...

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return how many bytes there were."""
        ...


class Storage(Protocol):
    """Where checkpoints lie. Paths are POSIX and relative to `root`; '' is the root itself."""

    @property
    def root(self) -> str:
        """The folder all paths start from."""
        ...

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order.

        Raises:
            LostLinkError: It is a link, and what it should lead to is not there.
            OSError: It cannot be listed.
        """
        ...

    def kind(self, path: str) -> Kind:
        """Tell what is at a path, links followed.

        Raises:
            LostLinkError: It is a link, and what it should lead to is not there.
            OSError: Nothing is there, or it cannot be checked.
        """
        ...

    def stamp(self, path: str) -> FileStamp:
        """What tells whether a regular file stays the same, links followed.

        Raises:
            NotRegularError: It is no regular file.
            OSError: It cannot be checked.
        """
        ...

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a whole record file.

        Raises:
            OverLimitError: It has more than `limit` bytes.
            LostLinkError: It is a link, and what it should lead to is not there.
            NotRegularError: It is no regular file.
            OSError: It cannot be read.
        """
        ...

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        """Open a file for reading ranges; use it in a `with` statement.

        Raises:
            LostLinkError: It is a link, and what it should lead to is not there.
            NotRegularError: It is no regular file.
            OSError: It cannot be read.
        """
        ...


@runtime_checkable
class OfSeveral(Protocol):
    """A storage of several machines, each of which may have its own record of a name."""

    def of_each(self, path: str) -> tuple[tuple[str, bytes], ...]:
        """Return what each machine has there, with its name; nothing where none has, or where they are not told apart.

        Raises:
            OSError: One of them could not read it.
        """
        ...


class PassedOn:
    """A storage that asks another for all; a class of its own says what it answers otherwise."""

    def __init__(self, storage: Storage) -> None:
        """Take the one that is asked."""
        self.root = storage.root
        self._storage = storage

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order."""
        return self._storage.entries(folder)

    def kind(self, path: str) -> Kind:
        """Tell what is at a path, links followed."""
        return self._storage.kind(path)

    def stamp(self, path: str) -> FileStamp:
        """Tell what shows whether a regular file stays the same, links followed."""
        return self._storage.stamp(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a whole record file."""
        return self._storage.small_file(path, limit=limit)

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        """Open a file for reading ranges."""
        return self._storage.open(path)


def is_there(storage: Storage, path: str) -> bool:
    """Return whether something is at a path, also where nobody may look at it."""
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
    WithheldError: "set credentials that may list and read there",
}


def remedy_of(error: OSError) -> str | None:
    """Say what may help where a storage withholds something; None if it is unknown."""
    return LOST_LINK_REMEDY if isinstance(error, LostLinkError) else _OTHER_USER.get(type(error))


def unreadable(path: str, error: OSError, rank: Rank | None = None) -> Finding:
    """Report what a storage withholds."""
    return unknown(
        Code.UNREADABLE,
        f"cannot be read ({error.strerror or error}): unknown, not damaged",
        path=path,
        remedy=remedy_of(error),
        ranks=() if rank is None else (rank,),
    )


class ShrankError(OSError):
    """The file ended before the range did: someone cut it while it was read.

    Attributes:
        offset: First byte that is no longer there.
        expected_end: Where the range was to end, exclusive.
    """

    def __init__(self, *, offset: int, expected_end: int) -> None:
        """Say where the file ends now, and where it should."""
        super().__init__(errno.ESTALE, f"the file ends at byte {offset}, expected {expected_end}")
        self.offset = offset
        self.expected_end = expected_end
