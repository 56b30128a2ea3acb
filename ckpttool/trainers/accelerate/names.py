"""What Accelerate calls its saves, and the files in them.

Source: `utils/constants.py`, `checkpointing.py` and `Accelerator.save_state` of accelerate 1.15.
"""

import re
from collections.abc import Iterable

from ckpttool.core.domain.shard import Shard

FOLDER = "checkpoints"
"""In the project's folder, where saves are numbered by themselves."""
NUMBERED = r"checkpoint_[0-9]{1,18}"
RANK_STATE = r"random_states_(?P<rank>[0-9]{1,9})\.pkl"
"""One a rank; these and registered objects are written last."""
LOADER = r"dl_state_dict(?:_[0-9]{1,9})?\.bin"


def first_number(name: str) -> int | None:
    """Return what Accelerate orders entries by; None where it stops with an IndexError."""
    found = re.search("[0-9]+", name)
    return None if found is None else int(found[0][:18])


def folder_of(name: str, shards: Iterable[Shard] = ()) -> str:
    """Return where a save lies below the root: a numbered one in `checkpoints/`, unless its files lie elsewhere."""
    if re.fullmatch(NUMBERED, name) is None or any(shard.path.startswith(f"{name}/") for shard in shards):
        return name
    return f"{FOLDER}/{name}"
