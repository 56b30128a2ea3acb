"""Hugging Face's Trainer: its saves, its logs, and its settings for loading a save."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ckpttool.trainers.base import LayoutSigns, Part, Refusal, Trainer
from ckpttool.trainers.hf_saves import WEIGHTS

if TYPE_CHECKING:
    from ckpttool.trainers.listing import Listing

SAVE = r"checkpoint-[0-9]{1,18}"
STATE = "trainer_state.json"
"""The file that Trainer writes last, directly under its final name."""
UNFINISHED = "checkpoint-is-incomplete.txt"
"""The marker file that transformers 5 writes in a save on SIGTERM, and removes when the save is complete."""
MODEL_CONFIG = "config.json"
ARGUMENTS = "training_args.bin"

RESUME = "resume_from_checkpoint"
"""Key for the save to resume from, in Trainer's arguments."""
OUTPUT = "output_dir"
"""Key for the output folder."""
AUTOMATIC = "auto_resume_from_checkpoints"
"""The axolotl setting that selects the save with the highest number."""
_GOES_ON = r"optimizer\.(?:pt|bin)|scheduler\.pt|rng_state(?:_[0-9]{1,9})?\.pth|global_step[0-9]+|optimizer_0"
"""Files of a save that a final export does not contain."""


def saves_called_otherwise(listing: Listing, *, every: bool = False) -> list[str]:
    """Return the saves downloaded or copied under a different name, unless there is a save with its original name.

    Args:
        listing: The names in the folder of the saves, or only one of them.
        every: Search all folders, not only a few.
    """
    save_names: list[str] = []
    with suppress(OSError):  # an unreadable folder shows nothing
        looked_into = listing.inside(most=None) if every else listing.inside()
        save_names += [name for name, names in looked_into if _is_complete_save(names)]
        if save_names and any(re.fullmatch(SAVE, name) for name in listing.names_in("")):
            return []
    return save_names


def _is_complete_save(names: frozenset[str]) -> bool:
    return STATE in names and any(re.fullmatch(_GOES_ON, name) for name in names)


def number_in(name: str) -> int | None:
    """Return the step in a save's name; None for any other name."""
    return int(name.rpartition("-")[2]) if re.fullmatch(SAVE, name) else None


_OWN = rf"{re.escape(STATE)}|{re.escape(ARGUMENTS)}|rng_state(?:_[0-9]{{1,9}})?\.pth|global_step[0-9]+"
"""Files of a save that are not in other trainers' folders with similar names."""

_SHARED = rf"{WEIGHTS}|(?s:pytorch_model.*)"
"""Files that are also in saves by scripts with Accelerate.

A truncated save may have no other files.
"""

_ALIEN = r"random_states_[0-9]+\.pkl"
"""Files of scripts that use only Accelerate, whose folders often have the same names."""


def recognise(listing: Listing) -> bool:
    """Recognize saves by the contents of their folders, because other trainers use the same folder names."""
    may_be, is_alien = False, False
    try:
        for _, names in listing.inside(SAVE):
            if _has(names, _ALIEN):
                is_alien = True
            elif _has(names, _OWN):
                return True
            else:
                may_be = may_be or _has(names, _SHARED)
    except OSError:
        if not may_be:
            raise
    return (may_be and not is_alien) or bool(saves_called_otherwise(listing))


def part(listing: Listing, folder: str, file: str | None) -> Part | Refusal | None:
    """Return the save to which a folder and its contents belong."""
    save = folder.partition("/")[0]
    if not save or not (re.fullmatch(SAVE, save) or saves_called_otherwise(listing.alone(save))):
        return None
    return Part(focus=save, resolved_from=save)


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)


LAYOUT = LayoutSigns(
    name="hf-trainer",
    sign="checkpoint-N/",
    recognise=recognise,
    part=part,
    reference="ckpttool.trainers.huggingface.layout:HfTrainerLayout",
)
TRAINER = Trainer(
    name="huggingface",
    title="Hugging Face's Trainer",
    records=r"(?:trainer_state|config|adapter_config)\.json|.+\.index\.json|latest",
    only_after_saves=r"trainer_state\.json|(?:all|train)_results\.json",
    places=("outputs", "output"),
    layout_names=(LAYOUT.name,),
    layouts_at=("ckpttool.trainers.huggingface:LAYOUT",),
    log_formats_at=("ckpttool.trainers.huggingface.log:HfTrainer", "ckpttool.trainers.huggingface.log:HfPrinted"),
    history_format="hf-trainer",
    logs_mean_loss=True,
    log_places_at="ckpttool.trainers.huggingface.places:HfLogs",
    start_logs_at="ckpttool.trainers.huggingface.places:start_logs",
    configs_at="ckpttool.trainers.huggingface.config:CONFIGS",
    intervals_at="ckpttool.trainers.huggingface.intervals:intervals",
    simulator_at="ckpttool.trainers.huggingface.own_choice:SIMULATOR",
    objections_at="ckpttool.trainers.hf_saves:objections",
    effects_at="ckpttool.trainers.huggingface.effects:effects",
    weights_at="ckpttool.trainers.hf_saves.weights:trainer_weights",
)
