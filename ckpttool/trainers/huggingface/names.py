"""What Hugging Face's Trainer calls its saves, and the records in them."""

from __future__ import annotations

import re
from contextlib import suppress

from ckpttool.trainers.listing import MOST_LOOKED_INTO, Listing

SAVE = r"checkpoint-[0-9]{1,18}"
STATE = "trainer_state.json"
"""Written last, and in place."""
UNFINISHED = "checkpoint-is-incomplete.txt"
"""In a save that transformers 5 makes on SIGTERM, until it is done."""
MODEL_CONFIG = "config.json"
ARGUMENTS = "training_args.bin"

RESUME = "resume_from_checkpoint"
"""What names the save to resume from, in its arguments."""
OUTPUT = "output_dir"
"""Where its saves go."""
AUTOMATIC = "auto_resume_from_checkpoints"
"""axolotl's setting that takes the highest number."""
_GOES_ON = r"optimizer\.(?:pt|bin)|scheduler\.pt|rng_state(?:_[0-9]{1,9})?\.pth|global_step[0-9]+|optimizer_0"
"""What a save has, and what is exported when a training ends has not."""


def saves_called_otherwise(listing: Listing, *, most: int | None = MOST_LOOKED_INTO) -> list[str]:
    """Return the saves that somebody downloaded or copied under another name, if none beside them has its own.

    Args:
        listing: Of their folder, or of it no more than one entry.
        most: Folders to look into; None: all.
    """
    found: list[str] = []
    with suppress(OSError):  # one that cannot be listed is told by nothing
        found += [name for name, names in listing.inside(most=most) if _is_whole_save(names)]
        if found and any(re.fullmatch(SAVE, name) for name in listing.names_in("")):
            return []
    return found


def _is_whole_save(names: frozenset[str]) -> bool:
    return STATE in names and any(re.fullmatch(_GOES_ON, name) for name in names)


def number_in(name: str) -> int | None:
    """Return the step that a save's name tells; None where it is called otherwise."""
    return int(name.rpartition("-")[2]) if re.fullmatch(SAVE, name) else None
