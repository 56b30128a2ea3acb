"""Trees that a driver of fsspec reads: `sftp://`, `ftp://`, `webdav://`, `oss://`, whatever is installed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ckpttool.domain.shard import FileStamp
from ckpttool.errors import UsageError
from ckpttool.storage.base import Entry, Kind, NotRegularError, OverLimitError, ReplacedError
from ckpttool.storage.driver import in_our_words, stamp_of, state_of
from ckpttool.storage.driver_lanes import Lane
from ckpttool.storage.driver_listing import DriverListing

FIRST_READ = 64 << 10
"""Bytes of the first read: nearly all headers lie in them."""
_LATER_READS = 16 << 10
"""At least so much is asked for when a walk leads elsewhere."""
_STREAMED = 4 << 20
"""Of a range that is read front to back so much comes at once: many servers begin anew for each read."""
_PROBE = 16
"""Bytes that are read once more from elsewhere, to see that a driver gives the range that it is asked for."""


class DriverStorage:
    """A folder on a server. Nothing is asked twice but what is read, which must be what was listed."""

    __slots__ = ("_server", "_start", "root")

    def __init__(self, root: str) -> None:
        """Take the place as it is spelled; nothing is asked yet.

        Raises:
            UsageError: Its scheme is not read, or what reads it is not installed.
        """
        self.root = root
        scheme, _, path = root.partition("://")
        place, _, inside = path.partition("/")
        if place in {os.curdir, os.pardir}:
            raise UsageError(f"{root} names no server: expected {scheme}://SERVER/FOLDER")
        self._server = _server_at(scheme, place)
        self._start = os.path.normpath(f"/{inside}").lstrip("/")

    def __reduce__(self) -> tuple[type[DriverStorage], tuple[str]]:
        return DriverStorage, (self.root,)

    def _full(self, path: str) -> str:
        return f"{self._start}/{path}" if self._start and path else self._start or path

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order.

        Raises:
            UntoldError: It looks empty.
        """
        found = self._server.folder(self._full(folder), self._start)
        return [Entry(name, seen.kind) for name, seen in found.items()]

    def kind(self, path: str) -> Kind:
        """Tell what lies at a path, links followed."""
        kind = self._server.look(self._full(path), self._start).kind
        if kind is Kind.LOST:
            raise self._server.lost(self._full(path))
        return kind

    def stamp(self, path: str) -> FileStamp:
        """Return size and state of a file as it was listed."""
        return self._server.stamp(self._full(path), self._start)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a whole record file of at most `limit` bytes."""
        with self.open(path) as source:
            if source.stamp.size > limit:
                raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
            return source.read(0, source.stamp.size)

    @contextmanager
    def open(self, path: str) -> Iterator[DriverSource]:
        """Open a file as it was listed; when it is closed, it must be so still."""
        full = self._full(path)
        source = DriverSource(self._server, full, self.stamp(path))
        try:
            yield source
        finally:
            source.close()
        source.assert_as_listed()


class DriverSource:
    """A file, of which every byte comes from the state that was listed, as far as the server tells states apart."""

    __slots__ = ("_begin", "_end", "_head", "_lane", "_page", "_path", "_server", "_was_read", "stamp")

    def __init__(self, server: _Server, path: str, stamp: FileStamp) -> None:
        """Take which file is meant, and how it was listed."""
        self._server, self._path, self.stamp = server, path, stamp
        self._lane: Lane | None = None
        self._head, self._page, self._begin = b"", b"", 0
        self._end = 0
        """How far is read front to back."""
        self._was_read = False

    def close(self) -> None:
        """Keep nothing open."""
        self._page = b""
        if self._lane is not None:
            self._server.close_file(self._path, self._lane)

    def assert_as_listed(self) -> None:
        """See that it is the file that was listed, where anything of it was read.

        Raises:
            ReplacedError: It is another one.
            OSError: The driver does not tell.
        """
        if self._was_read:
            self._server.assert_as_listed(self._path, self.stamp)

    def expect(self, begin: int, end: int) -> None:
        """Be told that a range will be read front to back."""
        self._end = max(self._end, end) if begin <= self._end else end

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only where the file ends."""
        end = min(offset + length, self.stamp.size)
        if offset >= end:
            return b""
        for begin, held in ((0, self._head), (self._begin, self._page)):
            if begin <= offset and end <= begin + len(held):
                return held[offset - begin : end - begin]
        if not self._head and offset < FIRST_READ:
            self._head = self._ask(0, max(end, FIRST_READ))
            self._server.prove_ranges(self._path, self._head, self.stamp)
            return self._head[offset:end]
        further = min(self._end, offset + _STREAMED)
        self._begin, self._page = offset, self._ask(offset, max(end, offset + _LATER_READS, further))
        return self._page[: end - offset]

    def _ask(self, begin: int, end: int) -> bytes:
        if self._lane is None or self._lane.is_left:
            self._lane = self._server.lane()
        self._was_read = True
        return self._server.range_of(self._path, self.stamp, (begin, min(end, self.stamp.size)), self._lane)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return how many bytes there were."""
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Server(DriverListing):
    """A server, and what was listed of it; one for all storages of a process that lie on it."""

    def __init__(self, url: str, scheme: str, place: str) -> None:
        super().__init__(url, scheme, place)
        self._gives_ranges: bool | None = None
        """Whether a range that was asked for was what came; None: nothing was read yet that tells."""

    def forget(self) -> None:
        """List all anew, and try again what did not come about."""
        super().forget()
        self._gives_ranges = None

    def stamp(self, path: str, start: str) -> FileStamp:
        """Return how a file was listed.

        Raises:
            NotRegularError: It is a folder.
            OSError: Nothing is there; or nothing but a size is told, by which no file is known again.
        """
        seen = self.look(path, start)
        if seen.kind is Kind.LOST:
            raise self.lost(path)
        if seen.kind is not Kind.FILE:
            raise NotRegularError(errno.EINVAL, "not a file, but a folder", path)
        stamp = stamp_of(seen.told)
        if stamp is None:
            raise OSError(
                "its driver tells no size, or neither a time nor a checksum beside it: whether the file is replaced "
                "while it is read would not be seen"
            )
        return stamp

    def lane(self) -> Lane:
        """Return the connection with the least to do."""
        return self._lanes.lane()

    def close_file(self, path: str, lane: Lane) -> None:
        """Let go of a file that reads kept open, as soon as that connection comes to it."""
        lane.put_aside(lambda connection: connection.close_file(self._driven(path)))

    def range_of(self, path: str, stamp: FileStamp, span: tuple[int, int], lane: Lane | None) -> bytes:
        """Return a range, which must not be empty.

        Raises:
            ReplacedError: It is gone.
            OSError: It does not come.
        """
        if self._gives_ranges is False:
            raise OSError(
                "its driver gives other bytes than those that are asked for: nothing that it says can be relied on"
            )
        full, (begin, end) = self._driven(path), span
        with _still_there(), in_our_words(self._spelled(path), self._secrets):
            data = self._lanes.ask(lambda connection: connection.read(full, begin, end), lane)
        if len(data) != end - begin:
            self.assert_as_listed(path, stamp)
            raise OSError(f"its driver gave {len(data)} bytes of {end - begin}")
        return data

    def prove_ranges(self, path: str, head: bytes, stamp: FileStamp) -> None:
        """See once that a range that does not begin a file is what its place says: not every server gives ranges.

        Raises:
            OSError: It is not.
        """
        if self._gives_ranges is not None:
            return
        differing = (at for at in range(len(head) - _PROBE, 0, -1) if head[at : at + _PROBE] != head[:_PROBE])
        at = next(differing, None)
        if at is None:
            return  # another file will tell
        probed = self.range_of(path, stamp, (at, at + _PROBE), None)
        if probed != head[at : at + _PROBE]:
            self.assert_as_listed(path, stamp)
            self._gives_ranges = False
            self.range_of(path, stamp, (at, at + _PROBE), None)
        self._gives_ranges = True

    def assert_as_listed(self, path: str, stamp: FileStamp) -> None:
        """See that a file is the one that was listed.

        Raises:
            ReplacedError: It is another one, or gone.
            OSError: The driver does not tell.
        """
        with _still_there():
            now = self._info(path)
        before = dict(zip(map(str, stamp.token[1::2]), stamp.token[2::2], strict=True))
        state = state_of(now)
        if not {*before}.intersection(state):  # some drivers tell of one file less than of a folder
            parent, _, name = path.rpartition("/")
            again = self._asked_for(parent).get(name)
            if again is None:
                raise ReplacedError("removed since it was listed")
            now, state = again.told, state_of(again.told)
        common = {*before}.intersection(state)
        size = now.get("size")
        if not common:
            raise OSError("its driver does not tell whether the file was replaced while it was read")
        if str(size) != str(stamp.size) or any(before[name] != state[name] for name in common):
            raise ReplacedError(f"replaced since it was listed, {stamp.size} bytes then, {size} now")


@contextmanager
def _still_there() -> Iterator[None]:
    """Let what was listed be gone, or withheld, which drivers call alike: it was there, and that is not taken back."""
    try:
        yield
    except FileNotFoundError:
        raise ReplacedError("removed since it was listed, or withheld") from None


# -------------------------------------------------------------------------------------------------------- the process

_SERVERS: dict[str, _Server] = {}
"""By scheme and place: a server keeps its connections."""
_OPENING = threading.Lock()


def _server_at(scheme: str, place: str) -> _Server:
    url = f"{scheme}://{place}"
    with _OPENING:
        if url not in _SERVERS:
            _SERVERS[url] = _Server(url, scheme, place)
        return _SERVERS[url]


def forget(root: str) -> None:
    """Forget what was listed of the server on which a root lies; its connections stay."""
    scheme, _, path = root.partition("://")
    with _OPENING:
        server = _SERVERS.get(f"{scheme}://{path.partition('/')[0]}")
    if server is not None:
        server.forget()
