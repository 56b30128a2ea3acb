"""Storage in object stores (`s3://`, `gs://`, `az://`), accessed with obstore.

Nothing is requested twice, because a listing has both entries and stamps. The tree is listed in one request, never per
object: a recursive list of the named folder returns all names, sizes and ETags below it. Folders above it are listed by
name only, because a bucket may contain anything. Each read is bound to the listing: an object that was replaced since
then is rejected, so that old and new bytes are never mixed.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.errors import UsageError, WriteFailedError
from ckpttool.core.storage.base import Entry, Kind, NotRegularError, OverLimitError
from ckpttool.core.storage.fan_out import STORE_WORKERS
from ckpttool.core.storage.object_listing import ObjectListing
from ckpttool.core.storage.object_store import assert_as_listed, conditions, in_our_words, opened_store, reason_of

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

FIRST_READ = 64 << 10
"""Size of the first read in bytes: enough for nearly all headers, and a smaller read would not be faster."""
_LATER_READS = 16 << 10
"""Minimum size of a request in bytes, if the reads of an object differ from the expected ranges."""
_LONG_WALK = 4
"""Number of consecutive reads after which the reads of the next object are requested together."""
_MOST_WALKS = 64
_STREAM = 1 << 20
"""Minimum size in bytes of a range that is read as a stream, and the size of the stream's pieces."""
_MOST_BREAKS = 4
"""Maximum number of consecutive interruptions of a stream without any data received."""
_PAUSE_SECONDS = 0.5
"""Pause in seconds before the first retry; each further pause is twice as long."""


class ObjectStorage:
    """Storage in a part of a bucket; folders are derived from the `/` in names."""

    __slots__ = ("_bucket", "_start", "root")

    def __init__(self, root: str) -> None:
        """Store the URL; nothing is requested yet.

        Raises:
            UsageError: The URL does not name a bucket, or obstore is not installed.
        """
        self.root = root
        scheme, _, path = root.partition("://")
        name, _, inside = path.partition("/")
        if name in {"", os.curdir, os.pardir}:
            raise UsageError(f"{root} names no bucket: expected {scheme}://BUCKET/FOLDER")
        self._bucket = _bucket_of(f"{scheme}://{name}")
        self._start = os.path.normpath(f"/{inside}").lstrip("/")

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[str]]:
        return ObjectStorage, (self.root,)

    def _key(self, path: str) -> str:
        return f"{self._start}/{path}" if self._start and path else self._start or path

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order."""
        names = self._bucket.folder(self._key(folder))
        return [Entry(name, Kind.FOLDER if stamp is None else Kind.FILE) for name, stamp in names.items()]

    def kind(self, path: str) -> Kind:
        """Return the kind of a path."""
        is_folder = self._bucket.lookup(self._key(path), lies_in_a_tree=bool(path)) is None
        return Kind.FOLDER if is_folder else Kind.FILE

    def stamp(self, path: str) -> FileStamp:
        """Return the size and ETag of an object as listed."""
        stamp = self._bucket.lookup(self._key(path), lies_in_a_tree=True)
        if stamp is None:
            raise NotRegularError(errno.EINVAL, "a folder, not an object", path)
        return stamp

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file of at most `limit` bytes with one request."""
        return self._bucket.small_object(self._key(path), limit)

    def write(self, path: str, data: bytes) -> None:
        """Write a complete object.

        Raises:
            OSError: The object was not written.
        """
        self._bucket.put(self._key(path), data)

    @contextmanager
    def open(self, path: str) -> Iterator[ObjectSource]:
        """Open an object in its listed version; nothing is requested before the first read."""
        source = ObjectSource(self._bucket, self._key(path), self.stamp(path))
        try:
            yield source
        finally:
            source.close()


class ListedObjects(ObjectStorage):
    """Storage of objects that were listed elsewhere.

    They are not listed again, and nothing is reused from an earlier question.
    """

    __slots__ = ("_listed",)

    def __init__(self, root: str, listed: Mapping[str, FileStamp]) -> None:
        """Store the location of the objects, and the stamp (size and ETag) of each object by path."""
        super().__init__(root)
        self._listed = listed

    def stamp(self, path: str) -> FileStamp:
        """Return the stamp from the listing."""
        return self._listed[path]


class ObjectSource:
    """An object whose bytes are all from the listed version."""

    __slots__ = ("_asked", "_bucket", "_end", "_head", "_key", "_pages", "_stream", "stamp")

    def __init__(self, bucket: _Bucket, key: str, stamp: FileStamp) -> None:
        """Store the object's key, and its stamp in the listing."""
        self._bucket, self._key, self.stamp = bucket, key, stamp
        self._head = b""
        self._pages: dict[int, bytes] = {}
        """Other pages that were read, by their first byte."""
        self._asked: list[tuple[int, int]] = []
        """Ranges that were requested after the first read."""
        self._end = 0
        self._stream: _Stream | None = None

    def close(self) -> None:
        """Stop requests, and save the ranges read as a prediction for other objects of this size."""
        self._stream = None
        self._bucket.note_walk(self.stamp.size, self._asked)
        self._pages.clear()

    def expect(self, begin: int, end: int) -> None:
        """Announce that a range will be read sequentially, so that one request reads the complete range."""
        at = -1 if self._stream is None else self._stream.offset
        if (begin == at and end <= self._end) or end - begin < _STREAM:
            return
        self._end = min(end, self.stamp.size)
        self._stream = _Stream(self._bucket, self._key, self.stamp, begin, self._end) if begin < self._end else None

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only at the end of the object."""
        end = min(offset + length, self.stamp.size)
        if offset >= end:
            return b""
        for begin, buffered in ((0, self._head), *self._pages.items()):
            if begin <= offset and end <= begin + len(buffered):
                return buffered[offset - begin : end - begin]
        if not self._head and offset < FIRST_READ:
            self._head = self._ask(0, max(end, FIRST_READ))
            return self._head[offset:end]
        walk = self._bucket.walk_of(self.stamp.size)
        if (offset, end) in walk and not self._asked:
            self._asked = [*walk]
            self._pages = self._bucket.ranges_of(self._key, self.stamp, _near_together(walk))
            return self.read(offset, length)
        self._asked.append((offset, end))
        page = self._ask(offset, max(end, offset + _LATER_READS))
        self._pages = {offset: page}
        return page[: end - offset]

    def _ask(self, begin: int, end: int) -> bytes:
        return self._bucket.range_of(self._key, self.stamp, begin, min(end, self.stamp.size))

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return the number of bytes read."""
        if self._stream is not None and offset == self._stream.offset:
            return self._stream.read_into(buffer)
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _near_together(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, merged if reading the gap is faster than another request."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin - merged[-1][1] <= _LATER_READS:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


class _Stream:
    """A range that is read as it arrives; after an interruption, a new request continues at the same byte."""

    def __init__(self, bucket: _Bucket, key: str, stamp: FileStamp, begin: int, end: int) -> None:
        self._bucket, self._key, self._stamp = bucket, key, stamp
        self.offset, self._end = begin, end
        self._asked = begin
        """End of the received data."""
        self._pieces: Iterator[memoryview] = iter(())
        self._piece = memoryview(b"")

    def read_into(self, buffer: memoryview) -> int:
        have = 0
        while have < len(buffer) and self.offset < self._end:
            if not self._piece:
                self._piece = self._next()
            taken = min(len(buffer) - have, len(self._piece))
            buffer[have : have + taken] = self._piece[:taken]
            self._piece = self._piece[taken:]
            have, self.offset = have + taken, self.offset + taken
        return have

    def _next(self) -> memoryview:
        """Return the next piece; after an interruption, retry as long as requests return data.

        Raises:
            OSError: No request returned data, or the store denies access.
        """
        breaks = 0
        while True:
            try:
                piece = next(self._pieces)
            except StopIteration:  # at the beginning, and after an interruption
                self._pieces = self._bucket.stream_of(self._key, self._stamp, self._asked, self._end)
            except _BrokenOffError:
                breaks += 1
                if breaks > _MOST_BREAKS:
                    raise
                time.sleep(_PAUSE_SECONDS * 2**breaks)
            else:
                self._asked += len(piece)
                return piece


class _BrokenOffError(OSError):
    """The store stopped in the middle of a response."""


class _Bucket(ObjectListing):
    """A bucket and its listings, shared by all storages of a process that use the bucket."""

    def __init__(self, url: str, store: ObjectStore) -> None:
        super().__init__(url, store)
        self._walking = 0
        """Number of objects of which many ranges are being requested."""
        self._walks: dict[int, tuple[tuple[int, int], ...]] = {}
        """Ranges that were read of an object, by the size of the object."""

    def small_object(self, key: str, limit: int) -> bytes:
        """Return an object of at most `limit` bytes, without listing its folder."""
        parent = key.rpartition("/")[0]
        with self._lock:
            is_known = self._is_known(parent)
        stamp = self.lookup(key, lies_in_a_tree=True) if is_known else None
        if is_known and stamp is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._url_of(key))
        if stamp is not None and stamp.size > limit:
            raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", self._url_of(key))
        with in_our_words(self._url_of(key)):
            answer = self._store.get(key, options=conditions(stamp))
            assert_as_listed(answer, stamp)
            if answer.meta["size"] > limit:
                raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", self._url_of(key))
            return bytes(answer.bytes())

    def put(self, key: str, data: bytes) -> None:
        """Write a complete object, and drop the listings so that they are requested again."""
        with in_our_words(self._url_of(key)):
            self._store.put(key, data)
        forget(self._url)

    def range_of(self, key: str, stamp: FileStamp, begin: int, end: int) -> bytes:
        """Return the bytes of a range, which must not be empty."""
        with self._minding_rules(key):
            answer = self._store.get(key, options={**conditions(stamp), "range": (begin, end)})
            assert_as_listed(answer, stamp)
            data = bytes(answer.bytes())
        if len(data) != end - begin:
            raise OSError(f"the store sent {len(data)} of {end - begin} bytes")
        return data

    def ranges_of(self, key: str, stamp: FileStamp, ranges: Sequence[tuple[int, int]]) -> dict[int, bytes]:
        """Return the bytes of several ranges by first byte, requested in parallel."""
        import asyncio

        with self._minding_rules(key), self._lock:
            self._walking += 1
            width = max(1, STORE_WORKERS // self._walking)  # at most as many as a store serves in parallel

        async def ask(begin: int, end: int, turn: asyncio.Semaphore) -> tuple[int, bytes]:
            async with turn:
                options: GetOptions = {**conditions(stamp), "range": (begin, end)}
                answer = await self._store.get_async(key, options=options)
                assert_as_listed(answer, stamp)
                return begin, bytes(await answer.bytes_async())

        async def ask_all() -> list[tuple[int, bytes] | BaseException]:
            turn = asyncio.Semaphore(width)
            # Errors are returned and not raised, because pending requests must not find the loop closed.
            return await asyncio.gather(*(ask(begin, end, turn) for begin, end in ranges), return_exceptions=True)

        try:
            answers = asyncio.run(ask_all())
        finally:
            with self._lock:
                self._walking -= 1
        with self._minding_rules(key):
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
        return dict(answer for answer in answers if not isinstance(answer, BaseException))

    def walk_of(self, size: int) -> Sequence[tuple[int, int]]:
        """Return the ranges that were read of another object of this size."""
        return self._walks.get(size, ())

    def note_walk(self, size: int, walk: Sequence[tuple[int, int]]) -> None:
        """Save the ranges that were read of an object, if there are many."""
        if len(walk) >= _LONG_WALK and len(self._walks) < _MOST_WALKS:
            self._walks.setdefault(size, tuple(walk))

    def stream_of(self, key: str, stamp: FileStamp, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes of a range in pieces.

        Raises:
            _BrokenOffError: The stream was interrupted.
            OSError: Any other read error.
        """
        from obstore.exceptions import BaseError

        with self._minding_rules(key):
            answer = self._store.get(key, options={**conditions(stamp), "range": (begin, end)})
            assert_as_listed(answer, stamp)
        pieces, remaining = iter(answer.stream(min_chunk_size=_STREAM)), end - begin
        while remaining:
            try:
                piece = memoryview(next(pieces, b""))
            except (BaseError, OSError) as error:
                raise _BrokenOffError(reason_of(error)) from None
            if not piece:
                raise _BrokenOffError(f"the store ended the transfer {remaining} bytes early")
            remaining -= len(piece)
            yield piece


# -------------------------------------------------------------------------------------------------------- the process

_STORES: dict[str, ObjectStore] = {}
"""Stores by scheme and bucket; a store keeps its connections, and is never sent to another process."""
_BUCKETS: dict[str, _Bucket] = {}
_OPENING = threading.Lock()


def _bucket_of(url: str) -> _Bucket:
    with _OPENING:
        bucket = _BUCKETS.get(url)
        if bucket is None:
            if url not in _STORES:
                _STORES[url] = opened_store(url)
            bucket = _BUCKETS[url] = _Bucket(url, _STORES[url])
        return bucket


def forget(root: str) -> None:
    """Drop the listings of a root's bucket; its connections stay open."""
    scheme, _, path = root.partition("://")
    with _OPENING:
        _BUCKETS.pop(f"{scheme}://{path.partition('/')[0]}", None)


def put_new(root: str, path: str, data: bytes) -> None:
    """Write a complete object under a unique name.

    Raises:
        WriteFailedError: The object was not written.
    """
    storage = ObjectStorage(root)
    try:
        storage.write(path, data)
    except OSError as error:
        raise WriteFailedError(f"{root}/{path} was not written: {error.strerror or error}") from None
