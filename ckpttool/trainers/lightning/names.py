"""What Lightning calls its saves."""

from __future__ import annotations

import re

SUFFIX = ".ckpt"
LAST = "last"
"""What the name of a save begins with that `ckpt_path="last"` may take."""
META = "meta.pt"
"""Written last where a save is a folder."""

VERSION = b"pytorch-lightning_version"
"""The third key of every save of its Trainer: in the first bytes of the file."""

_VERSION = r"-v[0-9]{1,9}\.ckpt"


def is_save(name: str) -> bool:
    """Tell whether a file or folder is called like a save."""
    return name.endswith(SUFFIX) and name != SUFFIX


def is_last(name: str) -> bool:
    """Tell whether `ckpt_path="last"` may take it.

    Source: `ModelCheckpoint._find_last_checkpoints` of Lightning 2.6, whose pattern is not matched to the name's end.
    """
    return is_save(name) and name.startswith(LAST)


def hpc_number(name: str) -> int | None:
    """Return the number of a save that Slurm's signal made Lightning write; None where it is none."""
    match = re.fullmatch(r"hpc_ckpt_([0-9]{1,9})\.ckpt", name)
    return None if match is None else int(match[1])


def is_bare(name: str) -> bool:
    """Tell whether no number stands in a name: neither a counter nor a metric made it."""
    return re.search("[0-9]", name.removesuffix(SUFFIX)) is None


def is_version(name: str) -> bool:
    """Tell whether a name was taken already when this was saved: `-v1` and higher."""
    return re.search(_VERSION, name) is not None and name.endswith(SUFFIX)


def step_in(name: str) -> int | None:
    """Return the step that a name tells in Lightning's own spelling, `epoch=1-step=12.ckpt`; None: none."""
    told = re.findall(r"(?:^|[^a-z])step=([0-9]{1,18})(?![0-9])", name)
    return int(told[0]) if len(told) == 1 else None
