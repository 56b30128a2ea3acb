"""Meaning of a config's path relative to a tree: the tree itself, a place in the tree, or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ckpttool.core.domain.plan import Outcome
from ckpttool.core.storage import is_local


def inside(root: str, path: str) -> str | None:
    """Return a path's target relative to a tree, such as `rank_0/a.ckpt`; empty for the root, None if it is elsewhere.

    A relative path is relative to the folder in which the training is started, which may differ from the current one.
    If nothing exists at the path from here, but its beginning matches the end of the tree's own path, the path counts
    as a place in the tree; `started_in` returns the folder for which this is true. A `~` is an ordinary name: the
    trainers that expand a `~` do so themselves.

    Args:
        root: The path of the tree, as it was opened.
        path: The path as written in a config.
    """
    if not is_local(root):
        relative = f"{path.rstrip('/')}/".removeprefix(f"{root.rstrip('/')}/")
        return None if relative == f"{path.rstrip('/')}/" else relative.rstrip("/")
    place = _place_in(root, path)
    return None if place is None else place[0]


def started_in(root: str, path: str) -> str | None:
    """Return the working directory that a path into a tree requires.

    None if the path works from the current directory, or from no directory.

    Args:
        root: The path of the tree, as it was opened.
        path: The path as written in a config.
    """
    place = _place_in(root, path) if is_local(root) else None
    return None if place is None else place[1]


def _place_in(root: str, path: str) -> tuple[str, str | None] | None:
    """Return a path's target in a tree, and the required working directory; None if the current directory works."""
    if "\0" in path:  # no file can have such a name
        return None
    full_root = os.path.abspath(root)
    first = None
    for full_path, start in _readings(full_root, path):
        relative = os.path.relpath(full_path, full_root)
        if relative != ".." and not relative.startswith("../"):
            place = "" if relative == "." else relative, start
            if os.path.exists(full_path):
                return place
            first = first or place  # inside the tree, any relative path leads into it from here
    return first


def elsewhere(root: str, path: str, path_text: str) -> tuple[str | None, Outcome, str]:
    """Return the outcome of a path that names no save of a tree.

    The start stops if the path does not exist.

    Args:
        root: The path of the tree, as it was opened.
        path: The path as written in a config.
        path_text: The setting that names the path, worded to begin a sentence.
    """
    if is_gone(root, path):
        tilde = ", because `~` is not expanded" if path.startswith("~") else ""
        return None, Outcome.STOPS, f"{path_text}, which does not exist{tilde}"
    return path, Outcome.UNKNOWN, f"{path_text}, which is not a save of {root}"


def is_gone(root: str, path: str) -> bool:
    """Return whether a path does not exist from any working directory; also true for an unexpanded `~`."""
    if path.startswith("~"):
        return True
    if not is_local(root) or not is_local(path) or not os.path.isdir(root):  # with parts, the tree is on other machines
        return False
    relative = inside(root, path)
    if relative is None:
        return os.path.isabs(path) and not os.path.exists(path)
    return not os.path.exists(os.path.join(root, relative))


def _readings(full_root: str, path: str) -> Iterator[tuple[str, str | None]]:
    """Yield the absolute paths that a path may mean, most likely first.

    Each comes with the working directory that it requires; None for the current one.
    """
    yield os.path.abspath(path), None
    # Through a link, the tree has a second path to the same folder.
    yield (
        os.path.normpath(os.path.join(full_root, os.path.relpath(os.path.realpath(path), os.path.realpath(full_root)))),
        None,
    )
    if os.path.isabs(path) or os.path.exists(path):
        return
    split = os.path.normpath(path).split("/")
    parts = [part for part in split if part != ".."]
    for length in range(len(parts), 0, -1):
        end = "/" + "/".join(parts[:length])
        if full_root.endswith(end):
            start = full_root.removesuffix(end) + "/*" * split.count("..")
            yield os.path.join(full_root, *parts[length:]), start or "/"
