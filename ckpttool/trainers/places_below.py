"""The folders below one in which trainings usually save."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpttool.core.storage import is_folder, open_storage, shortest
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.registry import places


def places_below(path: str) -> Iterator[str]:
    """Yield the folders below one in which trainings usually save, each once, however it is linked."""
    seen = {os.path.realpath(path)}
    for place in places():
        found = [path]
        for part in place.split("/"):
            inner = (os.path.join(folder, name) for folder in found for name in _called(part, folder))
            found = [shortest(root) for root in inner if is_folder(root)]
        for root in found:
            real = os.path.realpath(root)
            if real not in seen:
                seen.add(real)
                yield root


def _called(name: str, folder: str) -> list[str]:
    """Return the name, or where it ends with a `*` what is called so in a folder, with a number for the star."""
    start, star, _ = name.partition("*")
    if not star:
        return [name]
    try:
        entries = list_root(open_storage(folder)).beginning(start)
    except OSError:
        return []
    names = [entry.name for entry in entries if re.fullmatch("[0-9]+", entry.name[len(start) :])]
    return sorted(names, key=lambda name: (len(name), name))
