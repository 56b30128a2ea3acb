"""Listing of a bucket: trees by one recursive request, and the folders above them by names only."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import WithheldError
from ckpttool.core.storage.deadline import within
from ckpttool.core.storage.object_store import BrokenRulesError, in_our_words, stamp_of

if TYPE_CHECKING:
    from obstore import ListResult, ObjectMeta
    from obstore.store import ObjectStore

MOST_AT_ONCE = 200_000
"""Maximum number of objects listed below a folder (200 requests) before a deeper folder is requested."""
LISTING_SECONDS = 120.0
"""Time limit in seconds for a folder's names, or for one page of a recursive listing.

Without a limit, a store could return pages forever.
"""
_WHAT = "end of a listing"
_NOWHERE = ".ckpttool-asks-whether-this-is-a-store"
"""Key that exists in no bucket."""
_LISTED_ALONE = 8
"""Number of folders that are listed individually before all their siblings are listed together."""
_Folder = dict[str, "FileStamp | None"]
"""Contents of a folder, by name; None for a subfolder."""


class ObjectListing:
    """Listing of a bucket, in which nothing is listed twice."""

    def __init__(self, url: str, store: ObjectStore) -> None:
        """Store the URL of the bucket and its client; nothing is requested yet."""
        self._url, self._store = url, store
        self._lock = threading.RLock()
        self._folders: dict[str, _Folder] = {}
        self._whole: set[str] = set()
        """Folders whose complete contents are known."""
        self._strolls: Counter[str] = Counter()
        self._broken: str | None = None
        """Rule that the store violated, after which no more ranges are requested; None if it violated no rule."""

    @contextmanager
    def _minding_rules(self, key: str) -> Iterator[None]:
        if self._broken is not None:
            raise BrokenRulesError(self._broken)
        try:
            with in_our_words(self._url_of(key)):
                yield
        except BrokenRulesError as error:
            self._broken = str(error)
            raise

    def folder(self, path: str) -> _Folder:
        """Return the contents of a folder.

        Raises:
            OSError: The folder does not exist, or the store does not list it.
        """
        with self._lock:
            parent, _, name = path.rpartition("/")
            if not self._is_known(path):
                if not self._is_known(parent) and self._is_above(parent) and not self._is_above(path):
                    self._list_names(parent)
                siblings = self._folders.get(parent, {name: None})
                if name in siblings and siblings[name] is None:
                    self._list(path)
            names = self._folders.get(path)
            if names is None and self._folders.get(parent, {}).get(name) is not None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._url_of(path))
            if names is None:
                raise self._missing(path)
            return names

    def lookup(self, path: str, *, lies_in_a_tree: bool) -> FileStamp | None:
        """Return the stamp of an object; None for a folder.

        Args:
            path: Path in the bucket.
            lies_in_a_tree: Whether the siblings of the path will also be requested; otherwise only its contents will
                be.

        Raises:
            OSError: There is no such object or folder, or the store does not report it.
        """
        if not path:
            self.folder(path)
            return None
        parent, _, name = path.rpartition("/")
        with self._lock:
            if not self._is_known(parent) and not self._is_above(parent):
                self._list(parent if lies_in_a_tree else path)
            if path in self._folders:
                return None
            if not self._is_known(parent):
                self._list_names(parent)
            names = self._folders.get(parent, {})
            if name not in names:
                raise self._missing(path)
            return names[name]

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._url_of(path))

    def _url_of(self, path: str) -> str:
        return f"{self._url}/{path}" if path else self._url

    def _is_known(self, path: str) -> bool:
        if path in self._folders:
            return True
        while path:
            if path in self._whole:
                return True
            path = path.rpartition("/")[0]
        return "" in self._whole

    def _is_above(self, path: str) -> bool:
        start = f"{path}/" if path else ""
        return any(folder.startswith(start) and folder != path for folder in self._whole)

    def _list(self, path: str) -> None:
        """List a folder recursively, or only its names if there are too many objects below it."""
        if not path or self._is_above(path):
            self._list_names(path)
            return
        parent = path.rpartition("/")[0]
        self._strolls[parent] += parent in self._folders
        if self._strolls[parent] > _LISTED_ALONE:
            self._list_all(parent, None)
        elif not self._list_all(path, MOST_AT_ONCE):
            self._list_names(path)

    def _list_all(self, path: str, most: int | None) -> bool:
        folders: dict[str, _Folder] = {}
        count, start = 0, f"{path}/" if path else ""
        with in_our_words(self._url_of(path)):
            pages = iter(self._store.list(path or None, chunk_size=1000))
            while (page := within(LISTING_SECONDS, lambda: next(pages, None), _WHAT)) is not None:
                for meta in page:
                    if meta["path"] == path:  # a folder marker, which some tools create
                        folders.setdefault(path, {})
                    elif meta["path"].startswith(start):
                        self._add(folders, path, meta)
                count += len(page)
                if most is not None and count > most:
                    return False
        if not folders:
            self._assert_store(path)
        self._convert_markers(folders)
        self._folders |= folders
        self._whole.add(path)
        return True

    def _assert_store(self, path: str) -> None:
        """Check that an empty listing comes from a store, because a proxy's HTML page also parses as an empty listing.

        A proxy returns such a page for every address, even for a bucket that does not exist.

        Raises:
            OSError: The address is not a store.
        """
        try:
            with in_our_words(self._url_of(path)):
                self._store.head(f"{path}/{_NOWHERE}" if path else _NOWHERE)
        except (FileNotFoundError, WithheldError):
            return
        except OSError as error:
            if str(error).startswith("the store answers"):  # an HTTP status, which a store may also return
                return
        raise BrokenRulesError(
            f"{self._url_of(path)} is not an object store: it lists nothing, but returns content for every name, "
            f"like a proxy's error page"
        )

    def _add(self, folders: dict[str, _Folder], top: str, meta: ObjectMeta) -> None:
        parent, _, name = meta["path"].rpartition("/")
        if parent not in folders:
            _make(folders, top, parent)
        folder = folders[parent]
        if name not in folder:
            folder[name] = stamp_of(meta)
        elif folder[name] is not None:  # otherwise the contents show that it is a folder
            raise self._twice(meta["path"])

    def _twice(self, key: str) -> OSError:
        return OSError(f"the store lists {self._url_of(key)} twice: its listing cannot be trusted")

    def _convert_markers(self, folders: dict[str, _Folder]) -> None:
        """Convert empty objects that are folder markers to folders, because a store lists both in the same way."""
        for path, folder in list(folders.items()):
            empty = (name for name, stamp in folder.items() if stamp is not None and not stamp.size)
            doubtful = [name for name in empty if "." not in name]
            if not doubtful:
                continue
            with in_our_words(self._url_of(path)):
                prefixes = self._names(path)["common_prefixes"]
            for name in {prefix.rpartition("/")[2] for prefix in prefixes}.intersection(doubtful):
                folder[name] = None
                folders[f"{path}/{name}" if path else name] = {}

    def _names(self, path: str) -> ListResult[Sequence[ObjectMeta]]:
        work = partial(self._store.list_with_delimiter, path or None)
        return within(LISTING_SECONDS, work, _WHAT)

    def _list_names(self, path: str) -> None:
        """List the entries of a folder, including subfolders but not the subfolders' contents."""
        with in_our_words(self._url_of(path)):
            listed = self._names(path)
        names: _Folder = {}
        for meta in listed["objects"]:
            name = meta["path"].rpartition("/")[2]
            if meta["path"] == path:
                continue
            if name in names:
                raise self._twice(meta["path"])
            names[name] = stamp_of(meta)
        names |= dict.fromkeys(prefix.rpartition("/")[2] for prefix in listed["common_prefixes"])
        if not names and not listed["objects"]:
            self._assert_store(path)
        if names or not path or listed["objects"]:
            self._folders[path] = names


def _make(folders: dict[str, _Folder], top: str, folder: str) -> None:
    """Add a folder, and all folders between it and the topmost folder."""
    folders[folder] = {}
    while folder != top:
        outer, _, name = folder.rpartition("/")
        is_new = outer not in folders
        folders.setdefault(outer, {})[name] = None
        if not is_new:
            return
        folder = outer
