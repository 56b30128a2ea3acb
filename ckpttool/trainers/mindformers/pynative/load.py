"""The three settings with which the PyNative trainer loads exactly the chosen save, with its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Rename

LOAD_PATH = "checkpoint.load_path"
NO_LOAD_OPTIM = "checkpoint.no_load_optim"
LOAD_BALANCED = "checkpoint.load_balanced"

_PATH, *_OFF = (Place.parsed(f"config:{key}") for key in (LOAD_PATH, NO_LOAD_OPTIM, LOAD_BALANCED))


def load_settings(path: str, renames: tuple[Rename, ...]) -> LoadSettings:
    """Return the settings for a save's own folder: a folder without a tracker is loaded itself.

    Args:
        path: The folder.
        renames: To do first.
    """
    return LoadSettings(
        trainer="mindformers",
        path=path,
        settings=(
            TrainerSetting(place=_PATH, value=path, is_path=True),
            *(TrainerSetting(place=place, value=False) for place in _OFF),
        ),
        first=renames,
    )
