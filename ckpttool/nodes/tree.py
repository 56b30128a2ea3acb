"""The tree that several machines checked, read from the parts that they wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import counted
from ckpttool.core.errors import IncompleteError, UnknownLayoutError, UnsafeError
from ckpttool.core.records import PART_SUFFIX, STREAM
from ckpttool.core.storage import is_folder, open_storage
from ckpttool.core.storage.base import Kind, OverLimitError, Storage
from ckpttool.nodes.machines import MachinesOfParts
from ckpttool.nodes.merging import merge
from ckpttool.nodes.model import MOST_PARTS_BYTES
from ckpttool.nodes.part_file import MOST_PARTS, PartView, read_parts
from ckpttool.nodes.storage import RecordedStorage, inner_of, lend, root_of_key
from ckpttool.trainers.listing import Listing, list_root
from ckpttool.trainers.locate import intended
from ckpttool.trainers.located import Located
from ckpttool.trainers.parts import recognised

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import RunConfig


def read_views(path: str) -> Iterator[tuple[str, PartView | str]]:
    """Yield every part with its name; for an unreadable part, yield the reason.

    Args:
        path: A folder in which to read all files with a part's name; such a file; or `-` for standard input, with one
            or more such files in sequence.

    Raises:
        UnsafeError: There are more parts than any training run has.
        OSError: The folder cannot be listed.
    """
    if path == STREAM:
        yield from read_parts(_standard_input(), name="standard input")
        return
    if path.endswith(PART_SUFFIX) and not is_folder(path):
        folder, name = os.path.split(path)
        names = [name]
    else:
        folder = path
        files = (entry.name for entry in open_storage(folder).entries("") if entry.kind is not Kind.FOLDER)
        names = sorted(name for name in files if name.endswith(PART_SUFFIX))
    if len(names) > MOST_PARTS:
        raise UnsafeError(f"{path} has {len(names)} parts; at most {MOST_PARTS} are allowed")
    storage, bytes_left = open_storage(folder or "."), int(MOST_PARTS_BYTES)
    for name in names:
        try:
            data = storage.small_file(name, limit=bytes_left)
        except OverLimitError:
            raise UnsafeError(
                f"{path} has more than {MOST_PARTS_BYTES} bytes of parts: give fewer parts at once"
            ) from None
        except OSError as error:
            yield name, f"cannot be read: {error.strerror or error}"
            continue
        bytes_left -= len(data)
        yield from read_parts(data, name=name)


@cache  # it can be read only once, and one tree may get several questions
def _standard_input() -> bytes:
    if sys.stdin is None:
        raise IncompleteError("standard input is closed: no part could be read from it")
    data = sys.stdin.buffer.read(MOST_PARTS_BYTES + 1)
    if len(data) > MOST_PARTS_BYTES:
        raise UnsafeError(f"standard input has more than {MOST_PARTS_BYTES} bytes: give fewer parts at once")
    return data


def locate_parts(path: str, *, layout: str | None, config: RunConfig | None, root: str | None) -> Located:
    """Return the tree that several machines checked.

    Args:
        path: The path of the parts, as the user typed it.
        layout: Use only this layout.
        config: The config of the run to resume.
        root: The tree's path, if the path differs between its machines.

    Raises:
        UnknownLayoutError: No machine saw a tree.
        UsageError: The machines recorded several trees, and none is selected.
        IncompleteError: Some parts are missing.
    """
    machines = _machines_of(path, root)
    merged = machines.merge
    storage = _opened(machines)
    listing, layouts = Listing(entries=()), []
    try:
        listing = list_root(storage)
        layouts = recognised(listing, layout_name=layout)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise IncompleteError(f"{merged.root} cannot be read there: {error.strerror or error}") from None
    if not layouts:
        message = f"{path}: no machine has checkpoints that ckpttool knows in {merged.root}"
        if merged.missing or merged.blind:
            raise IncompleteError(f"{message}; but parts are missing: {merged.lacking}")
        raise UnknownLayoutError(message)
    return Located(
        storage=storage,
        listing=listing,
        layout=intended(layouts, merged.root, config),
        focus=None,
        resolved_from=f"{merged.root}, as {counted(len(merged.seats), 'machine')} saw it",
        machines=machines,
    )


def traces_of_parts(path: str, *, root: str | None) -> tuple[str, dict[str, str | None]]:
    """Return the tree's path, and for each part's name the trace of an earlier save.

    A trace is empty if the machine has no trace, and None if this is unknown.

    Args:
        path: The path of the parts, as the user typed it.
        root: The tree's path, if the path differs between its machines.

    Raises:
        UsageError: The machines recorded several trees.
        IncompleteError: Some parts are missing, or no part can be read.
    """
    merged = _machines_of(path, root).merge
    if merged.missing or merged.blind:
        raise IncompleteError(f"{path}: parts are missing: {merged.lacking}")
    return merged.root, {seat.name: seat.trace for seat in merged.seats_read}


def _machines_of(path: str, root: str | None) -> MachinesOfParts:
    """Read all parts, and combine them."""
    views: list[PartView] = []
    unread: list[tuple[str, str]] = []
    for name, view in read_views(path):
        if isinstance(view, PartView):
            views.append(view)
        else:
            unread.append((name, view))
    if not views:
        named = "; ".join(f"{name}: {why}" for name, why in unread[:3])
        raise IncompleteError(f"{path} has no readable part ({named or 'it is empty'})")
    return merge(views, source=path, unread=unread, root=root)


def _opened(machines: MachinesOfParts) -> Storage:
    """Let `open_storage` read the machines' records, including those above the tree; return the tree's storage."""
    tree, key = machines.merge.root, machines.merge.source

    def open_inner(root: str, path: str) -> Storage:
        return RecordedStorage(root, machines.answers, inner_of(path, tree), machines.report)

    lend("parts", key, open_inner)
    return open_storage(root_of_key("parts", key, tree))
