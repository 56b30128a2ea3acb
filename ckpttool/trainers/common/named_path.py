"""What a path in a config means of a tree: the tree, something in it, or another place."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ckpttool.storage import is_local


def inside(root: str, path: str) -> str | None:
    """Return where in a tree a path leads, `rank_0/a.ckpt`, empty for its root; None where that is another place.

    A relative path is one of wherever the training is started, which need not be where we are: it is taken for a place
    in the tree where the tree's own path ends as it begins.

    Args:
        root: The tree, as it was opened.
        path: As a config has it.
    """
    if not is_local(root):
        below = f"{path.rstrip('/')}/".removeprefix(f"{root.rstrip('/')}/")
        return None if below == f"{path.rstrip('/')}/" else below.rstrip("/")
    here = os.path.abspath(root)
    for there in _readings(here, os.path.expanduser(path)):
        below = os.path.relpath(there, here)
        if below != ".." and not below.startswith("../"):
            return "" if below == "." else below
    return None


def _readings(here: str, path: str) -> Iterator[str]:
    """Yield the absolute paths that a path may mean, the likeliest first."""
    yield os.path.abspath(path)
    # Through a link the tree has another path, and the two are one folder.
    yield os.path.normpath(os.path.join(here, os.path.relpath(os.path.realpath(path), os.path.realpath(here))))
    if os.path.isabs(path):
        return
    parts = [part for part in os.path.normpath(path).split("/") if part not in {"..", "."}]
    for length in range(len(parts), 0, -1):
        if here.endswith("/" + "/".join(parts[:length])):
            yield os.path.join(here, *parts[length:])
