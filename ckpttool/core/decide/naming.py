"""Lookup of checkpoints by the name that a user typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.units import STEP_DIGITS
from ckpttool.core.errors import UsageError

LATEST = "latest"
"""Name with the same effect as giving no name."""

_NUMBERED = r"(?s:.*[^0-9])([0-9]+)"
"""Pattern of names that end in the step: `iteration_00000030`, `step-30`."""

LIKE_A_SAVE = r"(?i)(?:.*[^a-z])?(?:step|iter|iteration|epoch|ckpt|checkpoint|ba)[-_=]?[0-9]+(?:[^0-9].*)?"
"""Pattern of names that trainers give to the folder of a save."""


def named(checkpoints: Iterable[Checkpoint], name: str) -> list[Checkpoint]:
    """Return the checkpoints with a name; several only if training runs share a folder.

    Args:
        checkpoints: The checkpoints; the result has the same order.
        name: The name in tables, another name of the checkpoint, its number alone if it is named after its step, or a
            shard's file name, with or without folders and extension.
    """
    *folders, last_part = name.rstrip("/").split("/")
    every = list(checkpoints)
    # An exact match comes first: a file's name may be another file's name without its extension.
    by_name = [checkpoint for checkpoint in every if checkpoint.name == last_part]
    by_alias = (checkpoint for checkpoint in every if last_part in checkpoint.aliases)
    # The files of all saves may have the same name; then the folder selects the save.
    by_folder = (checkpoint for checkpoint in every if checkpoint.name in folders)
    by_file = (checkpoint for checkpoint in every if last_part in _files(checkpoint))
    matches = by_name or list(by_alias) or list(by_folder) or list(by_file)
    return matches or [checkpoint for checkpoint in every if _is_short(checkpoint, last_part)]


def none_called(name: str, newest: Sequence[Checkpoint], root: str, *, also: str = "") -> UsageError:
    """Return an error for an unknown name, with the closest match and the available names, newest first.

    Args:
        name: The requested name.
        newest: The existing checkpoints, newest first.
        root: The tree.
        also: Keywords that also select checkpoints.
    """
    ends = [checkpoint.name for checkpoint in newest if checkpoint.name.endswith(f"-{name}")]
    at_step = [checkpoint.name for checkpoint in newest if checkpoint.step is not None and str(checkpoint.step) == name]
    close = [LATEST] if also and name in {"newest", "last"} else (ends or at_step)[:2]
    close = [f"{close_name} (step {name})" for close_name in close] if close and close[0] in at_step else close
    hint = f": did you mean {' or '.join(close)}? There" if close else "; there"
    names = ", ".join(checkpoint.name for checkpoint in newest[:8]) + (", …" if len(newest) > 8 else "")  # noqa: PLR2004  as many as fit on a line
    return UsageError(f"there is no checkpoint {name!r} in {root}{hint} are: {names or 'none'}{also}")


def focused(checkpoints: Sequence[Checkpoint], focus: str, name: str | None) -> list[Checkpoint]:
    """Return the checkpoints that match both the path and the name that the user gave.

    Args:
        checkpoints: The checkpoints of the tree.
        focus: Name of the checkpoint that the path belongs to, or of its file.
        name: The value of `--checkpoint`.

    Raises:
        UsageError: The path and the name select different checkpoints. Some trainers ignore a name if the path is a
            file; ckpttool does not.
    """
    matches = named(checkpoints, focus)
    if name in {None, LATEST}:
        return matches
    also = list(checkpoints) if name == "all" else named(checkpoints, name or "")
    both = [checkpoint for checkpoint in matches if checkpoint in also]
    if not both or (name == "all" and both != also):
        target = matches[0].name if matches else focus
        raise UsageError(f"DIR is a part of {target}, but --checkpoint is {name}; remove one of them")
    return both


def _files(checkpoint: Checkpoint) -> Iterator[str]:
    return (shard.path.rpartition("/")[2] for shard in checkpoint.shards)


def _is_short(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether a name is a shard's name without its extension, or just the number of a save."""
    return any(file.rpartition(".")[0] == name for file in _files(checkpoint) if name) or (
        checkpoint.label is None
        and (numbered := re.fullmatch(_NUMBERED, checkpoint.name)) is not None
        and _number(name) is not None
        and _number(numbered[1]) == _number(name)
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= STEP_DIGITS else None
