"""What a server shows of its folders, as far as that can be believed.

Drivers hide things. One answers a folder that it may not list as an empty one, another as one that is not there, a
third lists a file as a folder with itself in it. So what a driver shows is believed, and what it does not show is not:
a name is absent only where a listing of its folder that has other names lacks it. All else that looks empty or absent
is unknown. Nothing is asked for by `find` or `walk`, which leave out what raises.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from ckpttool.storage.base import UNTOLD, Kind, LostLinkError, UntoldError
from ckpttool.storage.driver import Told, in_our_words, kind_of, opened_driver


class Seen(NamedTuple):
    """What a listing tells of a name."""

    kind: Kind
    told: Told


_Folder = Mapping[str, Seen]


class DriverListing:
    """What was listed of a server; nothing is listed twice."""

    def __init__(self, url: str, scheme: str, place: str) -> None:
        """Take the server as it is spelled; nothing is asked yet.

        Raises:
            UsageError: Its scheme is not read, or what reads it is not installed.
        """
        self._url = url
        self._lanes, self._top, self._secrets = opened_driver(scheme, place)
        self._lock = threading.Lock()
        self._folders: dict[str, Future[_Folder]] = {}

    def forget(self) -> None:
        """List all anew, and try again what did not come about."""
        with self._lock:
            self._folders.clear()
        self._lanes.forget()

    def _spelled(self, path: str) -> str:
        return f"{self._url}/{path}" if path else self._url

    def _driven(self, path: str) -> str:
        return f"{self._top}/{path}" if path else self._top or "/"

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._spelled(path))

    def _not_a_folder(self, path: str) -> NotADirectoryError:
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._spelled(path))

    def lost(self, path: str) -> LostLinkError:
        """Say that something lies at a path, and nobody can tell what."""
        return LostLinkError(
            f"{self._spelled(path)} is a link, or nothing that its driver knows: it leads nowhere from here"
        )

    def look(self, path: str, start: str) -> Seen:
        """Return what lies at a path.

        Args:
            path: On the server.
            start: The storage's root, which nobody lists further up to believe in it.

        Raises:
            FileNotFoundError: Other names lie in its folder, and this does not.
            OSError: That is not known.
        """
        if path == start:
            return self._look_at_start(path)
        parent, _, name = path.rpartition("/")
        folder = self.folder(parent, start)
        if name not in folder:
            raise self._missing(path)
        return folder[name]

    def _look_at_start(self, path: str) -> Seen:
        """Ask the folder around it first: of a file some drivers say that it is a folder with itself in it."""
        if self._is_known_to_lack(path):
            raise self._missing(path)
        parent, _, name = path.rpartition("/")
        try:
            around = self._listed(parent) if path else {}
        except OSError:
            around = {}
        if name in around:
            return around[name]
        try:
            own = self._listed(path)
        except FileNotFoundError:
            own = {}
        except NotADirectoryError:
            return Seen(Kind.FILE, {})
        if {*own} - {name}:
            return Seen(Kind.FOLDER, {})
        if around:
            raise self._missing(path)
        raise self._untold(path)

    def _is_known_to_lack(self, path: str) -> bool:
        """Tell whether what was listed around a path shows that it is not there; nothing is asked for it."""
        above, name = path, ""
        while above:
            above, _, name = above.rpartition("/")
            with self._lock:
                known = self._folders.get(above)
            if known is not None and known.done() and known.exception() is None and known.result():
                return name not in known.result()
        return False

    def _untold(self, path: str) -> UntoldError:
        return UntoldError(f"{self._spelled(path)} looks empty or is not there, and {UNTOLD}")

    def folder(self, path: str, start: str) -> _Folder:
        """Return what lies in a folder: never nothing.

        Raises:
            FileNotFoundError: Other names lie in its folder, and this does not.
            NotADirectoryError: It is a file.
            UntoldError: It looks empty, or its folder names it and it looks absent.
            OSError: It cannot be listed.
        """
        seen = self.look(path, start)
        if seen.kind is Kind.FILE:
            raise self._not_a_folder(path)
        try:
            found = self._listed(path)
        except (FileNotFoundError, NotADirectoryError):
            found = {}
        if not found:
            raise self._untold(path)
        return found

    def _listed(self, path: str) -> _Folder:
        """Return what the driver lists of a folder, once; who asks meanwhile waits."""
        with self._lock:
            known = self._folders.get(path)
            listing: Future[_Folder] = Future()
            if known is None:
                self._folders[path] = listing
        if known is not None:
            return known.result()
        try:
            listing.set_result(self._asked_for(path))
        except BaseException as error:
            listing.set_exception(error)
            raise
        return listing.result()

    def _asked_for(self, path: str) -> _Folder:
        full = self._driven(path)
        with in_our_words(self._spelled(path), self._secrets):
            listed = self._lanes.ask(lambda connection: connection.listing(full))
        found: dict[str, Seen] = {}
        for told in self._of_folder(path, full, listed):
            name = str(told["name"]).rstrip("/").rpartition("/")[2]
            if name in found:
                raise OSError(
                    f"its driver lists {self._spelled(path)}/{name} twice: nothing that it says can be relied on"
                )
            found[name] = self._seen(f"{path}/{name}" if path else name, told)
        return found

    def _of_folder(self, path: str, full: str, listed: object) -> Iterator[Told]:
        """Yield what lies right in a folder, of what a driver lists; the folder itself some list, too.

        Raises:
            NotADirectoryError: It is a file.
            OSError: This is no listing of this folder.
        """
        if not isinstance(listed, (list, tuple)):
            raise OSError(f"its driver lists {self._spelled(path)} as no list")
        own = full.strip("/")
        for told in listed:
            if not isinstance(told, Mapping) or not isinstance(told.get("name"), str):
                raise OSError(f"its driver lists in {self._spelled(path)} what has no name")
            spelled = told["name"]
            inner = spelled.partition("://")[2] if "://" in spelled else spelled
            inner = inner.strip("/")
            if inner == own:
                if kind_of(told) is Kind.FILE and len(listed) == 1 and not spelled.endswith("/"):
                    raise self._not_a_folder(path)
                continue
            outer, _, name = inner.rpartition("/")
            if outer != own:
                raise OSError(f"its driver lists in {self._spelled(path)} what does not lie there")
            if name not in {os.curdir, os.pardir}:
                yield told

    def _seen(self, path: str, told: Told) -> Seen:
        """Return what a listing tells of a name; of a link, what it leads to."""
        kind = kind_of(told)
        if kind is not Kind.LOST:
            return Seen(kind, told)
        try:
            told = self._info(path)
        except OSError:
            return Seen(Kind.LOST, told)
        return Seen(kind_of(told), told)

    def _info(self, path: str) -> Told:
        full = self._driven(path)
        with in_our_words(self._spelled(path), self._secrets):
            told = self._lanes.ask(lambda connection: connection.info(full))
        if not isinstance(told, Mapping):
            raise OSError(f"its driver tells nothing of {self._spelled(path)}")
        return told
