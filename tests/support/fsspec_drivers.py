"""A driver of fsspec over a folder, in this process, that lies as drivers are known to lie."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SCHEME = "lying"
SECRET = "a-secret-that-nobody-prints"  # noqa: S105  that is the test


@dataclass(slots=True)
class Lies:
    """What a driver does otherwise than it should; paths relative to its topmost folder."""

    folder: Path
    """What its `SERVER/` shows."""
    empty: set[str] = field(default_factory=set)
    """Folders that may not be listed, which it lists as empty."""
    absent: set[str] = field(default_factory=set)
    """Folders and files that are withheld, of which it says that they are not there."""
    refused: set[str] = field(default_factory=set)
    """What it says may not be looked at."""
    itself: bool = False
    """Whether a listing has the folder itself, and that of a file the file."""
    child: bool = False
    """Whether a file is listed as a folder with itself in it, as by FTP."""
    twice: str = ""
    """A name that every listing has twice."""
    foreign: str = ""
    """A path that every listing has besides."""
    left_out: set[str] = field(default_factory=set)
    """What it tells of files besides name, size and type, and here does not."""
    not_told: set[str] = field(default_factory=set)
    """What `info` does not tell, and a listing does."""
    whole: bool = False
    """Whether a range is answered from the beginning of the file."""
    short: int = 0
    """Bytes that each read lacks."""
    stale: bool = False
    """Whether a listing is remembered until the cache is emptied."""
    error: Exception | None = None
    """What every question raises."""
    errors_left: int = -1
    """How often it raises; -1: always."""
    hangs: set[str] = field(default_factory=set)
    """Names of files of which a read does not end."""
    connections: int = -1
    """How many come about; -1: all."""
    asked: Counter[str] = field(default_factory=Counter)
    at_once: int = 0
    most_at_once: int = 0
    threads: dict[int, set[int]] = field(default_factory=dict)
    """By connection: the threads that used it."""
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def lying_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_async: bool = False) -> Iterator[Lies]:
    """Let `lying://SERVER/PATH` be what a folder holds, read by fsspec."""
    import fsspec
    from fsspec.config import conf
    from fsspec.registry import _registry as registered  # there is no public way back

    from ckpttool.storage import driver_files

    lies = Lies(folder=folder)
    monkeypatch.setitem(conf, SCHEME, {"password": SECRET})
    fsspec.register_implementation(SCHEME, _driver_over(lies, is_async=is_async), clobber=True)
    monkeypatch.setattr(driver_files, "_SERVERS", {})
    try:
        yield lies
    finally:
        lies.released.set()
        let_go()
        registered.pop(SCHEME, None)


def let_go() -> None:
    """End the threads of all connections: a program has no need to, but tests are many in one."""
    from ckpttool.storage import driver_files

    for server in driver_files._SERVERS.values():  # noqa: SLF001  as above
        for lane in server._lanes._lanes:  # noqa: SLF001
            lane.close()
            lane._thread.join(5)  # noqa: SLF001


def _driver_over(lies: Lies, *, is_async: bool) -> Any:  # noqa: ANN401, C901  a class, whose base may not be there
    from fsspec.spec import AbstractFileSystem

    class Driver(AbstractFileSystem):  # type: ignore[misc]  # its package has no types
        protocol = SCHEME
        async_impl = is_async
        mirror_sync_methods = False

        def __init__(self, host: str, **options: Any) -> None:  # noqa: ANN401  as fsspec gives them
            super().__init__(host=host, **options)
            with lies.lock:
                lies.asked["connect"] += 1
                refuses = lies.connections == 0
                lies.connections -= lies.connections > 0
            if refuses:
                raise ConnectionRefusedError(f"lying://user:{options['password']}@{host} refuses")
            self._remembered: dict[str, list[dict[str, Any]]] = {}
            lies.threads[id(self)] = set()

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            stripped = path.partition("://")[2] if "://" in path else path
            return "/" + stripped.partition("/")[2].strip("/") if "://" in path else stripped

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, str]:
            return {"host": path.partition("://")[2].partition("/")[0]}

        @contextmanager
        def _asking(self, what: str) -> Iterator[None]:
            with lies.lock:
                lies.asked[what] += 1
                lies.at_once += 1
                lies.most_at_once = max(lies.most_at_once, lies.at_once)
                lies.threads[id(self)].add(threading.get_ident())
                fails = lies.error is not None and lies.errors_left != 0
                lies.errors_left -= fails and lies.errors_left > 0
            try:
                if fails and lies.error is not None:
                    raise lies.error
                yield
            finally:
                with lies.lock:
                    lies.at_once -= 1

        def _path(self, path: str) -> Path:
            inner = path.strip("/")
            if inner in lies.refused:
                raise PermissionError(13, "may not be looked at", path)
            if inner in lies.absent:
                raise FileNotFoundError(path)
            return lies.folder / inner

        def invalidate_cache(self, path: str | None = None) -> None:
            del path
            self._remembered.clear()

        def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:  # noqa: ANN401, FBT002  as fsspec's
            del options
            assert detail
            with self._asking("ls"):
                if lies.stale and path in self._remembered:
                    return self._remembered[path]
                found = self._remembered[path] = self._listed(path)
                return found

        def _listed(self, path: str) -> list[dict[str, Any]]:
            inner, here = path.strip("/"), self._path(path)
            if inner in lies.empty:
                return []
            if here.is_file():
                if lies.child:
                    return [{**self._told(here), "name": f"/{inner}/{here.name}"}]
                if not lies.itself:
                    raise NotADirectoryError(path)
                return [self._told(here)]
            names = sorted(here.iterdir())
            found = [self._told(each) for each in names]
            found += [self._told(each) for each in names if each.name == lies.twice]
            if lies.itself:
                found.append({**self._told(here), "name": f"/{inner}/"})
            if lies.foreign:
                found.append({"name": lies.foreign, "type": "file", "size": 1})
            return found

        def info(self, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401  as above
            del options
            with self._asking("info"):
                told = self._told(self._path(path), is_followed=True)
                return {name: value for name, value in told.items() if name not in lies.not_told}

        def _told(self, here: Path, *, is_followed: bool = False) -> dict[str, Any]:
            name = "/" + str(here.relative_to(lies.folder)).removeprefix(".")
            if here.is_symlink() and not is_followed:
                return {"name": name, "type": "link", "size": 3}
            status = here.stat()
            told: dict[str, Any] = {
                "name": name,
                "type": "directory" if here.is_dir() else "file",
                "size": status.st_size,
            }
            told["mtime"] = datetime.fromtimestamp(status.st_mtime_ns // 1000 / 1e6, timezone.utc)
            told["etag"] = f'"{status.st_mtime_ns:x}-{status.st_ino:x}"'
            told["time"] = time.monotonic()  # when it was read last, say: no sign of another content
            return {key: value for key, value in told.items() if key not in lies.left_out}

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:  # noqa: ANN401
            del options
            with self._asking("read"):
                begin, last = (0 if lies.whole else start or 0), (end or 0) - (start or 0) - lies.short
                return self._bytes(path)[begin : begin + last]

        def _bytes(self, path: str) -> bytes:
            here = self._path(path)
            if here.name in lies.hangs:
                lies.released.wait(60)
            return here.read_bytes()

        def _open(self, path: str, mode: str = "rb", **options: Any) -> io.BytesIO:  # noqa: ANN401  as above
            assert mode == "rb"
            assert options["cache_type"] == "none"
            with self._asking("open"):
                return _File(self._bytes(path), self._asking)

    class _File(io.BytesIO):
        def __init__(self, data: bytes, asking: Any) -> None:  # noqa: ANN401  a method
            super().__init__(data)
            self._asking = asking

        def seek(self, offset: int, whence: int = 0) -> int:
            return super().seek(0 if lies.whole else offset, whence)

        def read(self, size: int | None = -1) -> bytes:
            with self._asking("read"):
                return super().read(max(0, (size or 0) - lies.short))

    return Driver
