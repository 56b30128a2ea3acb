"""Kinds of data loader states, recognized by their keys, whichever trainer saved them.

The states are plain values, as `core/formats/torch/plain.py` reads them; nothing is unpickled. A kind is a module with
a function `read`, and a line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from ckpttool.core.extensions import imported
from ckpttool.core.formats.torch.pickle_objects import Global, Made

if TYPE_CHECKING:
    from ckpttool.core.domain.loader_state import LoaderState

KINDS = (
    "ckpttool.trainers.loader_states.torchdata:read",
    "ckpttool.trainers.loader_states.hf_datasets:read",
    "ckpttool.trainers.loader_states.mosaic:read",
    "ckpttool.trainers.loader_states.energon:read",
    "ckpttool.trainers.loader_states.olmo:read",
    "ckpttool.trainers.loader_states.titan:read_alone",
)
"""A function for each kind, which returns the position in a state, or None for a state of another kind."""

_MOST_KEYS = 6
_MOST_KEY_CHARS = 40
_MOST_DEPTH = 4
"""Maximum depth at which a file of any contents is searched for states."""
_MOST_SEARCHED = 10_000
"""Maximum number of values that are searched."""


def recognized(state: object) -> LoaderState | None:
    """Return the position in a state; None if it is of an unknown kind."""
    for kind in KINDS:
        read = cast("Callable[[object], LoaderState | None]", imported(kind))
        position = read(state)
        if position is not None:
            return position
    return None


def unknown_kind(state: object) -> str:
    """Describe a state of an unknown kind by its keys, so that nothing about its position is guessed."""
    if isinstance(state, Made):
        by = state.by
        return f"unknown kind: an object of {by.module}.{by.name}" if isinstance(by, Global) else "unknown kind"
    if not isinstance(state, Mapping):
        return f"unknown kind: {'empty' if state is None else 'not a dictionary'}"
    keys = sorted(str(key)[:_MOST_KEY_CHARS] for key in list(state)[: _MOST_KEYS + 1])
    more = "" if len(state) <= _MOST_KEYS else ", …"
    return f"unknown kind: keys {', '.join(keys[:_MOST_KEYS])}{more}" if keys else "unknown kind: no keys"


def states_in(values: object) -> Iterator[tuple[str, LoaderState]]:
    """Yield the states of known kinds in a file of any contents, each with its path of keys.

    Args:
        values: The plain values of the file.
    """
    level: list[tuple[str, object]] = [("", values)]
    left = _MOST_SEARCHED
    for _ in range(_MOST_DEPTH):
        others = []
        for path, value in level:
            position = recognized(value)
            if position is None:
                others.append((path, value))
            else:
                yield path, position
        level = []
        for path, value in others:
            members = _members(value)[:left]
            left -= len(members)
            dot = "." if path else ""
            level += [(f"{path}{dot}{str(key)[:_MOST_KEY_CHARS]}", member) for key, member in members]


def _members(value: object) -> list[tuple[object, object]]:
    if isinstance(value, dict):
        # The tensors of a large model must not use up the number of values that are searched.
        return [(key, member) for key, member in value.items() if isinstance(member, (dict, list, Made))]
    if isinstance(value, list):
        return list(enumerate(value[:_MOST_KEYS]))
    return []
