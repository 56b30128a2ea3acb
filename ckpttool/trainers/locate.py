"""Find the checkpoint tree that a path means: an output folder, the tree itself, a folder in it, a shard."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.domain.frozen import dataclass, replace
from ckpttool.domain.question import DEFAULT_DIR
from ckpttool.errors import IncompleteError, UnknownLayoutError
from ckpttool.storage import is_folder, is_local, open_storage, shortest
from ckpttool.storage.base import Entry, Kind, Storage, is_there
from ckpttool.trainers.base import Layout, Part, Refusal
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT
from ckpttool.trainers.common.tracker_file import TRACKER, whose_tracker
from ckpttool.trainers.listing import Listing, list_root, show_alone
from ckpttool.trainers.registry import layouts, loose_file, meant, places, recognised, signs

if TYPE_CHECKING:
    from ckpttool.domain.settings import RunConfig

MOST_LEVELS_UP = 3
"""How far above the current folder a tree is looked for."""
DEEPEST_PART = 4
"""Folders from a tree down to a file in one of its saves: Orbax's `30/default/ocdbt.process_0/d/FILE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The tree that a path means."""

    storage: Storage
    listing: Listing
    layout: Layout
    focus: str | None
    """The shard's or the save's own name, where the path was one."""
    resolved_from: str | None
    """What was taken instead of the path itself, for people; None where it is the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What says which layout is meant, where a folder holds several."""

    layout: str | None
    """Take this one alone."""
    config: RunConfig | None
    """Of the run that is to resume."""


def locate(path: str | None, *, layout: str | None = None, config: RunConfig | None = None) -> Located:
    """Find the tree that `path` means.

    Args:
        path: As it was given; None: `./output/checkpoint`, else the tree in or around the current folder.
        layout: Take this one alone.
        config: Of the run that is to resume: its trainer knows in which of several layouts it saves.

    Raises:
        UnknownLayoutError: There is none, with what was looked for.
        UsageError: There are several, and nobody says which is meant.
        IncompleteError: The folder is there but cannot be read.
    """
    wish = _Wish(layout=layout, config=config)
    if path is None and not is_there(open_storage(DEFAULT_DIR), ""):
        with _withheld(os.curdir):
            around = _around_us(wish)
        if around is None:
            raise _missing(shortest(DEFAULT_DIR), _hint(os.curdir))
        return around
    path = shortest(DEFAULT_DIR if path is None else path)
    with _withheld(path):
        kind = open_storage(path).kind("")
        if kind is Kind.FILE:
            return _around_file(path, wish)
        if kind is not Kind.FOLDER:
            raise UnknownLayoutError(f"{path} is neither a folder nor a shard")
        return _around_folder(path, wish)


def locate_emptied(path: str | None, *, layout: str | None = None) -> Located | None:
    """Find the tree at a path of which all checkpoints lie in the trash, which tells how it is arranged.

    Args:
        path: As in `locate`.
        layout: Look for this one alone.

    Raises:
        UsageError: The trash holds several layouts, and nobody says which is meant.
        IncompleteError: The trash cannot be listed.
    """
    from ckpttool.records.journal import TRASH, trash_folders

    start = DEFAULT_DIR if path is None and is_there(open_storage(DEFAULT_DIR), "") else path or "."
    for root in filter(is_folder, (start, *(os.path.join(start, place) for place in places()))):
        root = shortest(root)  # noqa: PLW2901  as it is shown
        storage = open_storage(root)
        found: dict[str, Layout] = {}
        for folder in trash_folders(storage):
            with _withheld(root):
                inside = list_root(open_storage(f"{root}/{TRASH}/{folder.name}"))
                found |= {each.name: each for each in recognised(inside, wanted=layout)}
        if found:
            one = meant(list(found.values()), f"{root}/{TRASH}", None)
            took = None if path is not None and root == shortest(path) else f"{root}, of which only the trash is left"
            with _withheld(root):
                return Located(storage=storage, listing=list_root(storage), layout=one, focus=None, resolved_from=took)
    return None


@contextmanager
def _withheld(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise _missing(path) from None
        reason = os.strerror(error.errno) if error.errno else error
        raise IncompleteError(f"{path} cannot be read: {reason}") from None


def _missing(path: str, hint: str = "") -> UnknownLayoutError:
    return UnknownLayoutError(f"{path} does not exist; give the folder that holds {signs()[0]}{hint}")


def _hint(folder: str) -> str:
    """Name the trees a little below a folder that is none, if there are any: one of them may have been meant."""
    from ckpttool.trainers.below import trees_below

    try:
        found = [below.path for below in trees_below(folder, levels=3, most=200) if below.is_known]
    except IncompleteError:
        return ""
    if len(found) > 3:  # noqa: PLR2004  as many as a line holds
        return f"; {len(found)} trees lie below it: ckpttool scan --all {folder}"
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _around_us(wish: _Wish) -> Located | None:
    """Find the tree in which somebody stands: all of it, for nobody said that a part is meant.

    Its root is told in full: a config to which it is copied does not lie in the tree.
    """

    def here() -> Located | None:
        found = _below(os.getcwd(), wish)
        return found if found is None or found.resolved_from else replace(found, resolved_from="the current folder")

    def around(folder: str) -> Located | None:
        found = _around_part(folder, folder, None, wish)
        took = "" if found is None else f"{found.storage.root}, the tree around the current folder"
        return None if found is None else replace(found, focus=None, resolved_from=took)

    further = (os.path.join(*[os.pardir] * up) for up in range(1, MOST_LEVELS_UP))
    return _first(partial(around, os.curdir), here, *(partial(around, folder) for folder in further))


def _first(*attempts: Callable[[], Located | None]) -> Located | None:
    """Return the first tree that is found.

    Raises:
        OSError: None was, and where one may be cannot be read.
    """
    unread = None
    for attempt in attempts:
        try:
            found = attempt()
        except OSError as error:
            unread = unread or error
        else:
            if found is not None:
                return found
    if unread is not None:
        raise unread
    return None


def _around_file(path: str, wish: _Wish) -> Located:
    folder, name = os.path.split(path)
    folder = folder or "."
    if wish.layout == LOOSE_FILE_LAYOUT:  # whatever it lies in
        return _loose(folder, name)
    around = _around_part(path, folder, name, wish)
    if around is not None:
        return around
    if name == TRACKER:
        whose = _whose(list_root(open_storage(folder)))
        raise UnknownLayoutError(f"{folder} holds no checkpoints that ckpttool knows{whose}")
    # What no tree claims is none of its: nobody who names it means the newest of its saves.
    return _loose(folder, name)


def _around_part(path: str, folder: str, file: str | None, wish: _Wish) -> Located | None:
    """Find the tree of which a layout says that a folder, or a file in it, is a part.

    The outermost one: what lies in a save may look like another trainer's tree. Whose it is, what lies in the path
    itself tells: its names may be those of several trainers, as may be what lies beside it.

    Args:
        path: As it was given, for people.
        folder: That folder.
        file: The file in it that was meant; None for the folder itself.
        wish: Which layout is meant.

    Raises:
        OSError: The folder around it cannot be listed; whoever cannot look further up sees no tree there.
    """
    unread, is_claimed = None, False
    for root, inner in reversed([*([] if file is None else [(folder, "")]), *_outward(folder)]):
        unread = None
        storage = open_storage(root)
        beginning = Entry(inner.partition("/")[0], Kind.FOLDER) if inner else Entry(file or "", Kind.FILE)
        alone = show_alone(storage, beginning)
        try:
            claims = {each.name: part for each in layouts() if (part := each.part(alone, inner, file)) is not None}
            if not claims:
                continue
            listing = list_root(storage)
            found = [layout for layout in _first_known(alone, listing, wish) if layout.name in claims]
        except OSError as error:
            unread = error
            continue
        if found:
            layout = meant(found, folder, wish.config)
            return _as_part(path, storage, listing, layout, claims[layout.name])
        is_claimed = is_claimed or bool(inner)
    if unread is not None:
        raise unread
    if is_claimed and wish.layout is not None:
        raise UnknownLayoutError(f"{path} is no part of a tree of {wish.layout}")
    return None


def _first_known(alone: Listing, listing: Listing, wish: _Wish) -> list[Layout]:
    return recognised(alone, wanted=wish.layout) or recognised(listing, wanted=wish.layout)


def _outward(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the folders around a folder, the nearest first, each with the path from it to that folder."""
    root, inner = folder, ""
    for _ in range(DEEPEST_PART):
        parent, own = os.path.split(root)
        if own in {"", os.curdir, os.pardir}:  # the path does not say the folder's own name
            parent, own = os.path.split(os.path.abspath(root))
        if not own or is_local(parent) != is_local(folder):
            return
        root, inner = parent or os.curdir, f"{own}/{inner}" if inner else own
        yield root, inner


def _as_part(path: str, storage: Storage, listing: Listing, layout: Layout, part: Part | Refusal) -> Located:
    if isinstance(part, Refusal):
        raise UnknownLayoutError(f"{path} {part.why}")
    took = None if part.resolved_from is None else f"{part.resolved_from} of {storage.root}"
    return Located(storage=storage, listing=listing, layout=layout, focus=part.focus, resolved_from=took)


def _loose(folder: str, name: str) -> Located:
    listing = Listing(entries=(Entry(name, Kind.FILE),))
    if not loose_file().recognise(listing):
        raise UnknownLayoutError(
            f"{folder}/{name} is no shard: expected .ckpt, .safetensors, .pt, .pth, .bin, .distcp or .metadata"
        )
    return Located(storage=open_storage(folder), listing=listing, layout=loose_file(), focus=name, resolved_from=None)


def _around_folder(path: str, wish: _Wish) -> Located:
    # Who names a layout may mean what lies in a save of another; else that is none of its own.
    attempts = (partial(_around_part, path, path, None, wish), partial(_below, path, wish))
    found = _first(*(attempts if wish.layout is None else reversed(attempts)))
    if found is not None:
        return found
    folders, files = signs()
    whose = _whose(list_root(open_storage(path)))
    told = f"no {folders} folder, no {files}{whose}{_hint(path)}"
    raise UnknownLayoutError(f"{path} holds no checkpoints that ckpttool knows: {told}")


def _below(path: str, wish: _Wish) -> Located | None:
    """Find the tree in a folder, or where trainings save below it."""
    inner = [os.path.join(path, place) if path != "." else place for place in places()]
    roots = [path, *filter(is_folder, inner)]
    for root in roots:
        storage = open_storage(root)
        listing = list_root(storage)
        found = recognised(listing, wanted=wish.layout)
        if found:
            layout, took = meant(found, root, wish.config), None
            if root is not path:
                took = "".join([root, *map(_another, roots[roots.index(root) + 1 :])])
            return Located(storage=storage, listing=listing, layout=layout, focus=None, resolved_from=took)
    return None


def _another(place: str) -> str:
    from ckpttool.trainers.below import trees_below

    return f"; {place} is another tree" if any(trees_below(place, levels=0)) else ""


def _whose(listing: Listing) -> str:
    return whose_tracker([entry.name for entry in listing.entries])
