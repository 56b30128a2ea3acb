"""Connections to one server by a driver of fsspec, each used by one thread alone, none waited for over a minute.

Most drivers hold a connection that two threads at once would confuse, have no time limit, and do not mend a connection
that broke. So each connection is a lane: a thread, and a queue of what it is to ask.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ckpttool.storage.base import ReplacedError

R = TypeVar("R")

LANES = 8
"""Connections to a server at once: servers of files refuse many more."""
SHARED_LANES = 32
"""Questions at once of a driver that asks many over connections of its own."""
PATIENCE_SECONDS = 60.0
"""For one answer: a listing, or some MiB of a file."""
_TICK_SECONDS = 0.5
_MOST_HANGS = 3
"""Answers that did not come, after which none is waited for."""


class FileSystem(Protocol):
    """What is used of fsspec's `AbstractFileSystem`, whose package has no types."""

    async_impl: bool
    storage_options: dict[str, Any]

    def ls(self, path: str, detail: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002, D102  as fsspec spells it
        ...

    def info(self, path: str) -> Any:  # noqa: ANN401, D102
        ...

    def cat_file(self, path: str, start: int, end: int) -> Any:  # noqa: ANN401, D102
        ...

    def open(self, path: str, mode: str, **options: Any) -> Any:  # noqa: ANN401, D102
        ...

    def invalidate_cache(self) -> None:  # noqa: D102
        ...


class UnreachableError(OSError):
    """No connection to the server came about."""


class Connection:
    """What one lane asks with, from its thread alone."""

    def __init__(self, fs: FileSystem) -> None:
        """Take the driver's own object."""
        self.fs = fs
        self._files: dict[str, Any] = {}

    def listing(self, path: str) -> Any:  # noqa: ANN401  whatever the driver gives
        """Return what the driver lists of a folder, and nothing that it remembers."""
        self.fs.invalidate_cache()
        return self.fs.ls(path, detail=True)

    def info(self, path: str) -> Any:  # noqa: ANN401  as above
        """Return what the driver tells of a path, links followed, and nothing that it remembers."""
        self.fs.invalidate_cache()
        return self.fs.info(path)

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes of a range; fewer where the driver gives fewer."""
        if self.fs.async_impl:  # a request each, and nothing to keep open
            return bytes(self.fs.cat_file(path, start=begin, end=end))
        if path not in self._files:
            self._files[path] = _opened(self.fs, path)
        file, pieces, have = self._files[path], [], begin
        file.seek(begin)
        while have < end and (piece := file.read(end - have)):
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)[: end - begin]

    def close_file(self, path: str) -> None:
        """Close what reads kept open."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()


def _opened(fs: FileSystem, path: str) -> Any:  # noqa: ANN401  a file of the driver's own kind
    try:
        return fs.open(path, "rb", cache_type="none")
    except TypeError:  # it knows of no cache that could be none
        return fs.open(path, "rb")


class Lane:
    """A thread, its connection, and what it is to ask."""

    def __init__(self, connect: Callable[[], FileSystem], *, is_shared: bool) -> None:
        """Begin to wait for questions; the first one connects."""
        self._connect, self._is_shared = connect, is_shared
        self._asked: queue.SimpleQueue[_Question[Any]] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._has_answered = False
        self.waiting = 0
        """Questions that are not answered yet."""
        self.begun = 0.0
        """When the present one was begun, by a clock that only goes on; 0: there is none."""
        self.is_left = False
        """Whether an answer did not come: nobody waits for it any more."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether what waits will be asked."""
        return self._thread.is_alive()

    def put(self, question: _Question[Any]) -> None:
        """Have a question asked behind those that wait."""
        self._asked.put(question)

    def put_aside(self, work: Callable[[Connection], None]) -> None:
        """Have something done of which nobody waits for the end; not where it takes a new connection."""
        if self._connection is not None:
            self._asked.put(_Question(work))

    def close(self) -> None:
        """End the thread behind what waits."""
        self._asked.put(_Question(None))

    def _run(self) -> None:
        while (question := self._asked.get()).work is not None:
            self.begun = time.monotonic()
            try:
                question.answer = [self._ask(question.work)]
            except BaseException as error:  # noqa: BLE001  whoever asked is told
                question.error = error
            self.begun = 0.0
            question.done.set()
        self._connection = None

    def _ask(self, work: Callable[[Connection], R]) -> R:
        """Ask; where the connection is not what it was, once more over a new one."""
        connection = self._connected()
        try:
            answer = work(connection)
        except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, ReplacedError):
            self._has_answered = True
            raise
        except Exception:
            if self._is_shared or not self._has_answered:
                raise
            self._connection, self._has_answered = None, False
            answer = work(self._connected())
        self._has_answered = True
        return answer

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                self._connection = Connection(self._connect())
            except Exception as error:
                raise UnreachableError(*error.args) from error
        return self._connection


class _Question(Generic[R]):
    def __init__(self, work: Callable[[Connection], R] | None) -> None:
        self.work = work
        self.done = threading.Event()
        self.answer: list[R] = []
        self.error: BaseException | None = None


class Lanes:
    """All connections to one server."""

    def __init__(self, connect: Callable[[], FileSystem], *, is_shared: bool) -> None:
        """Connect to nothing yet.

        Args:
            connect: Makes what speaks to the server.
            is_shared: Whether one of it serves many threads at once.
        """
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._make, self._is_shared = connect, is_shared
        self._shared: FileSystem | None = None
        self._lanes: list[Lane] = []
        self._most = self._allowed = SHARED_LANES if is_shared else LANES
        self._hangs = 0
        self._lost: OSError | None = None
        """Why nobody is asked any more."""

    def forget(self) -> None:
        """Try again what did not come about."""
        with self._lock:
            self._hangs, self._lost, self._most = 0, None, self._allowed

    def _connect(self) -> FileSystem:
        with self._connecting:  # one after another: a server of SSH drops some of those that knock at once
            if not self._is_shared:
                return self._make()
            if self._shared is None:
                self._shared = self._make()
            return self._shared

    def ask(self, work: Callable[[Connection], R], lane: Lane | None = None) -> R:
        """Return what some work gets by a connection.

        Args:
            work: What to ask.
            lane: The one to ask with, if that still runs.

        Raises:
            TimeoutError: No answer came.
            UnreachableError: Nobody answers at all.
            Exception: As the driver raises it.
        """
        while True:
            taken = self._taken(lane)
            try:
                answer = self._answer(taken, work)
            except UnreachableError as error:
                if self._go_on_without(taken, error):
                    lane = None
                    continue
                raise
            return answer

    def lane(self) -> Lane:
        """Return the one with the least to do."""
        with self._lock:
            return self._least_busy()

    def _least_busy(self) -> Lane:
        idle = [lane for lane in self._lanes if not lane.waiting]
        if not idle and len(self._lanes) < self._most:
            self._lanes.append(Lane(self._connect, is_shared=self._is_shared))
        return min(idle or self._lanes, key=lambda lane: lane.waiting)

    def _taken(self, lane: Lane | None) -> Lane:
        with self._lock:
            if self._lost is not None:
                raise type(self._lost)(*self._lost.args)
            taken = self._least_busy() if lane not in self._lanes or lane is None else lane
            taken.waiting += 1
            return taken

    def _answer(self, lane: Lane, work: Callable[[Connection], R]) -> R:
        question = _Question(work)
        lane.put(question)
        try:
            while not question.done.wait(_TICK_SECONDS):
                if lane.is_left or (lane.begun and time.monotonic() - lane.begun > PATIENCE_SECONDS):
                    raise self._leave(lane)
                if not lane.is_running and not question.done.is_set():
                    raise UnreachableError("the connection was let go")
        finally:
            with self._lock:
                lane.waiting -= 1
        if question.error is not None:
            raise question.error
        return question.answer[0]

    def _leave(self, lane: Lane) -> TimeoutError:
        error = TimeoutError(f"no answer within {PATIENCE_SECONDS:g} s")
        with self._lock:
            if not lane.is_left:
                lane.is_left = True
                lane.close()  # if ever it comes back
                self._lanes = [each for each in self._lanes if each is not lane]
                self._hangs += 1
            if self._hangs >= _MOST_HANGS:
                self._lost = error
        return error

    def _go_on_without(self, lane: Lane, error: UnreachableError) -> bool:
        """Tell whether there are others: then no more of them are to be had; else nobody is there."""
        lane.close()
        with self._lock:
            self._lanes = [each for each in self._lanes if each is not lane]
            self._most = max(1, len(self._lanes))
            if not self._lanes:
                self._lost = error
            return bool(self._lanes)
