"""Find the trees below a folder that contains many training runs. No file is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from ckpttool.core.errors import IncompleteError
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import Kind
from ckpttool.trainers.base import Layout
from ckpttool.trainers.listing import Listing, list_root
from ckpttool.trainers.others import others_saves
from ckpttool.trainers.parts import recognised, trees_around

LEVELS = 8
"""Depth of the search for a tree below a folder."""
MOST_FOLDERS = 20_000
"""Maximum number of folders to list; search larger trees in parts."""


class TreeFolder(NamedTuple):
    """A folder that is a tree according to its names, or that may be one."""

    path: str
    is_known: bool
    """False if the folder cannot be listed."""


def trees_below(
    root: str, *, layout: str | None = None, levels: int = LEVELS, most: int = MOST_FOLDERS, hidden: bool = True
) -> Iterator[TreeFolder]:
    """Yield the trees in and below a folder, sorted; do not follow links or search inside checkpoints.

    Args:
        root: The start folder.
        layout: Search only for this layout.
        levels: Depth of the search.
        most: Maximum number of folders to list.
        hidden: Whether to search folders whose names begin with a dot.

    Raises:
        IncompleteError: There are more folders than `most`.
    """
    if _is_in_a_save(root, layout):
        return
    waiting, listed = [(root, levels)], 0
    while waiting:
        folder, depth_left = waiting.pop()
        if listed == most:
            raise IncompleteError(f"there are more than {most} folders below {root}: name some of them")
        listed += 1
        try:
            listing = list_root(open_storage(folder))
        except OSError:
            yield TreeFolder(folder, is_known=False)
            continue
        folders = [entry.name for entry in listing.entries if entry.kind is Kind.FOLDER]
        layouts: list[Layout] = []
        try:
            layouts = recognised(listing, layout_name=layout)
        except OSError as error:
            # An unreadable subfolder is reported separately: it need not be a save.
            if not depth_left or os.path.basename(error.filename or "") not in folders:
                yield TreeFolder(folder, is_known=False)
        if layouts:
            yield TreeFolder(folder, is_known=True)
        is_foreign = others_saves(listing) is not None
        further = [name for name in folders if not _is_save(listing, name, layouts, is_foreign=is_foreign)]
        for name in reversed(further) if depth_left else ():
            path = name if folder == os.curdir else os.path.join(folder, name)
            if name != OWN_FOLDER and (hidden or name[0] != ".") and not os.path.islink(path):
                waiting.append((path, depth_left - 1))


def _is_save(listing: Listing, folder: str, layouts: list[Layout], *, is_foreign: bool) -> bool:
    """Return whether a folder is part of a tree that was already found, or a save of an unknown trainer."""
    if any(_is_part(listing, folder, layout) for layout in layouts):
        return True
    return is_foreign and others_saves(listing.alone(folder)) is not None


def _is_part(listing: Listing, folder: str, layout: Layout) -> bool:
    try:
        return layout.signs.part(listing, folder, None) is not None
    except OSError:
        return False


def _is_in_a_save(root: str, layout: str | None) -> bool:
    """Return whether a folder is part of a tree that surrounds it."""
    try:
        return any(around.layouts for around in trees_around(root, None, layout_name=layout))
    except OSError:
        return False
