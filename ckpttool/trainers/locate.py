"""Find the checkpoint tree that a path means: an output folder, the tree itself, a folder in it, a shard."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from ckpttool.errors import IncompleteError, UnknownLayoutError
from ckpttool.storage import is_folder, open_storage, shortest
from ckpttool.storage.base import Entry, Kind, Storage
from ckpttool.trainers.base import Layout, Listing, Refusal
from ckpttool.trainers.common.tracker_file import TRACKER, whose_tracker
from ckpttool.trainers.registry import layouts, list_root, loose_file, places, recognise


class Located(NamedTuple):
    """The tree that a path means."""

    storage: Storage
    listing: Listing
    layout: Layout
    focus: str | None
    """The shard's or the save's own name, where the path was one."""
    resolved_from: str | None
    """What was taken instead of the path itself, for people; None where it is the path."""


def locate(path: str, *, layout: str | None = None) -> Located:
    """Find the tree that `path` means.

    Raises:
        UnknownLayoutError: There is none, with what was looked for.
        IncompleteError: The folder is there but cannot be read.
    """
    path = shortest(path)
    try:
        kind = open_storage(path).kind("")
        if kind is Kind.FILE:
            return _around_file(path, layout)
        if kind is not Kind.FOLDER:
            raise UnknownLayoutError(f"{path} is neither a folder nor a shard")
        return _around_folder(path, layout)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise UnknownLayoutError(f"{path} does not exist; give the folder that holds {_signs()[0]}") from None
        reason = os.strerror(error.errno) if error.errno else error
        raise IncompleteError(f"{path} cannot be read: {reason}") from None


def _around_file(path: str, wanted: str | None) -> Located:
    folder, name = os.path.split(path)
    folder = folder or "."
    around = _around_part(path, folder, name, wanted)
    if around is not None:
        return around
    found = _try(folder, wanted)
    if found is None and name == TRACKER:
        raise UnknownLayoutError(f"{folder} holds no checkpoints that ckpttool knows{_whose(folder)}")
    # What the tree does not claim is none of its: nobody who names it means the newest of its saves.
    return found if found is not None and found.layout.speaks_of_all(name) else _loose(folder, name)


def _around_part(path: str, folder: str, file: str | None, wanted: str | None) -> Located | None:
    """Find the tree above a folder whose name says that it is a part of one.

    Args:
        path: As it was given, for people.
        folder: That folder.
        file: The file in it that was meant; None for the folder itself.
        wanted: Take this layout alone.
    """
    # The path may not say the folder's own name: `.`, `..` and `../..`.
    parent, own = os.path.split(folder if os.path.basename(folder) not in {".", ".."} else os.path.abspath(folder))
    for layout in layouts():
        part = layout.part(own, file)
        if isinstance(part, Refusal):
            raise UnknownLayoutError(f"{path} {part.why}")
        if part is not None:
            root = parent or "."
            found = _try(root, wanted or layout.name, focus=part.focus, resolved_from=f"{part.resolved_from} of {root}")
            if found is None:
                raise UnknownLayoutError(f"{root} holds no checkpoints that ckpttool knows")
            return found
    return None


def _loose(folder: str, name: str) -> Located:
    listing = Listing(entries=(Entry(name, Kind.FILE),))
    if not loose_file().recognise(listing):
        raise UnknownLayoutError(
            f"{folder}/{name} is no shard: expected .ckpt, .safetensors, .pt, .pth, .bin or .metadata"
        )
    return Located(storage=open_storage(folder), listing=listing, layout=loose_file(), focus=name, resolved_from=None)


def _around_folder(path: str, wanted: str | None) -> Located:
    found = _try(path, wanted)
    if found is not None:
        return found
    for place in places():
        inner = os.path.join(path, place) if path != "." else place
        if is_folder(inner) and (found := _try(inner, wanted, resolved_from=inner)) is not None:
            return found
    around = _around_part(path, path, None, wanted)
    if around is not None:
        return around
    folders, files = _signs()
    raise UnknownLayoutError(
        f"{path} holds no checkpoints that ckpttool knows: no {folders} folder, no {files}{_whose(path)}"
    )


def _signs() -> tuple[str, str]:
    """Say by which folders and by which files a tree is told, the most usual first."""
    signs = [layout.sign for layout in reversed(layouts())]
    folders, files = ([sign for sign in signs if sign.endswith("/") is is_folder] for is_folder in (True, False))
    return " or ".join(folders), " or ".join(files)


def _whose(path: str) -> str:
    return whose_tracker([entry.name for entry in list_root(open_storage(path)).entries])


def _try(
    root: str, wanted: str | None, *, focus: str | None = None, resolved_from: str | None = None
) -> Located | None:
    storage = open_storage(root)
    listing = list_root(storage)
    layout = recognise(listing, wanted=wanted)
    if layout is None:
        return None
    return Located(storage=storage, listing=listing, layout=layout, focus=focus, resolved_from=resolved_from)
