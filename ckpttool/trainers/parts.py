"""The layouts of a folder, the tree that contains a path, and the places of trees below a path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpttool.core.storage import is_folder, is_local, open_storage, shortest
from ckpttool.core.storage.base import Entry, Kind, Storage
from ckpttool.trainers.base import Layout, LayoutSigns, Part, Refusal
from ckpttool.trainers.listing import Listing, list_root, show_alone
from ckpttool.trainers.others import without_others
from ckpttool.trainers.registry import trainers

DEEPEST_PART = 4
"""Maximum number of folders from a tree down to a file in a save: Orbax's `30/default/ocdbt.process_0/d/FILE`."""


def layouts() -> tuple[LayoutSigns, ...]:
    """Return the signs of all trainers' layouts, most specific first."""
    return tuple(layout for trainer in trainers() for layout in trainer.layouts)


def recognised(listing: Listing, *, layout_name: str | None = None) -> list[Layout]:
    """Return every layout of a folder.

    A training run that switched layouts leaves two. A layout that gives way is returned if it is the only layout, or
    has several saves that belong to no other layout. Saves of unknown trainers are ignored, unless a layout is
    requested.

    Args:
        listing: The folder's names.
        layout_name: Return only this layout, if a folder has several.

    Raises:
        OSError: No layout was found, and a folder that would decide the answer cannot be listed.
    """
    layouts_here: list[LayoutSigns] = []
    unread = None
    if layout_name is None:
        listing = without_others(listing)
    for layout in sorted(layouts(), key=lambda layout: (layout.is_last, layout.gives_way)):
        try:
            if layout_name not in {None, layout.name} or (layouts_here and layout.is_last):
                continue
            if not layout.recognise(listing):
                continue
            if not (layouts_here and layout.gives_way) or _has_its_own(layout, listing, layouts_here):
                layouts_here.append(layout)
        except OSError as error:
            unread = error
    if not layouts_here and unread is not None:
        raise unread
    return [signs.layout for signs in layouts_here]


def _has_its_own(layout: LayoutSigns, listing: Listing, peers: Sequence[LayoutSigns]) -> bool:
    """Return whether a layout that gives way has a series of saves in a folder.

    A single save is an export. If other layouts' saves look like this layout's saves, a folder that no layout claims is
    a copy of such a save.

    Raises:
        OSError: A folder that would decide the answer cannot be listed.
    """
    sign_count = 0
    for entry in listing.entries:
        if entry.kind is Kind.FOLDER and layout.part(listing, entry.name, None) is not None:
            if any(peer.part(listing, entry.name, None) is not None for peer in peers):
                return False
            sign_count += 1
    return sign_count > 1


class Around(NamedTuple):
    """A folder that may be the tree around a path."""

    storage: Storage
    listing: Listing
    layouts: list[Layout]
    """Layouts of the tree; empty if the names match, but the existing contents do not."""
    parts: Mapping[str, Part | Refusal]
    """The part at the path, by the name of the layout."""
    is_inside: bool
    """Whether the path is in a subfolder; False for a file in the root."""


def trees_around(folder: str, file: str | None, *, layout_name: str | None = None) -> Iterator[Around]:
    """Yield the trees that may contain a folder, or a file in it, outermost first.

    The contents of a save may look like another trainer's tree. The contents of the path identify the trainer: the
    path's name, and the names next to it, may fit several trainers.

    Args:
        folder: The folder.
        file: The selected file in the folder; None for the folder itself.
        layout_name: Search only for this layout.

    Raises:
        OSError: The parent folder cannot be listed, so trees further up are not visible; raised after all other trees.
    """
    unread = None
    for root, inner in reversed([*([] if file is None else [(folder, "")]), *outward(folder)]):
        unread = None
        storage = open_storage(root)
        beginning = Entry(inner.partition("/")[0], Kind.FOLDER) if inner else Entry(file or "", Kind.FILE)
        alone = show_alone(storage, beginning)
        try:
            parts = {layout.name: part for layout in layouts() if (part := layout.part(alone, inner, file)) is not None}
            if not parts:
                continue
            listing = list_root(storage)
            layouts_here = recognised(alone, layout_name=layout_name) or recognised(listing, layout_name=layout_name)
        except OSError as error:
            unread = error
            continue
        matching = [layout for layout in layouts_here if layout.name in parts]
        yield Around(storage, listing, matching, parts, is_inside=bool(inner))
    if unread is not None:
        raise unread


def outward(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the parents of a folder, nearest first, each with the path from that parent to the folder."""
    root, inner = folder, ""
    for _ in range(DEEPEST_PART):
        parent, name = os.path.split(root)
        if name in {"", os.curdir, os.pardir}:  # the path does not contain the folder's own name
            parent, name = os.path.split(os.path.abspath(root))
        if not name or is_local(parent) != is_local(folder):
            return
        root, inner = parent or os.curdir, f"{name}/{inner}" if inner else name
        yield root, inner


def places_below(path: str) -> Iterator[str]:
    """Yield the usual places of saves below a folder, each only once even if links lead to it."""
    visited = {os.path.realpath(path)}
    for place in dict.fromkeys(place for trainer in trainers() for place in trainer.places):
        roots = [path]
        for part in place.split("/"):
            inner = (os.path.join(folder, name) for folder in roots for name in _called(part, folder))
            roots = [shortest(root) for root in inner if is_folder(root)]
        for root in roots:
            real = os.path.realpath(root)
            if real not in visited:
                visited.add(real)
                yield root


def _called(name: str, folder: str) -> list[str]:
    """Return the name itself.

    If it ends with `*`, return the names in the folder that have a number in place of the star.
    """
    start, star, _ = name.partition("*")
    if not star:
        return [name]
    try:
        entries = list_root(open_storage(folder)).beginning(start)
    except OSError:
        return []
    names = [entry.name for entry in entries if re.fullmatch("[0-9]+", entry.name[len(start) :])]
    return sorted(names, key=lambda name: (len(name), name))
