"""The three settings that make the PyNative trainer load exactly the chosen save, with its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckpttool.core.domain.checkpoint import Checkpoint

LOAD_PATH = "checkpoint.load_path"
NO_LOAD_OPTIM = "checkpoint.no_load_optim"
LOAD_BALANCED = "checkpoint.load_balanced"

_PATH, _NO_OPTIMIZER, _BALANCED = (Place.parsed(f"config:{key}") for key in (LOAD_PATH, NO_LOAD_OPTIM, LOAD_BALANCED))
_FROM_THE_BEGINNING = "without an optimizer the run begins at step 1 and sample 0; use another checkpoint.save_path"


def load_settings(path: str, checkpoint: Checkpoint, remarks: tuple[str, ...] = ()) -> LoadSettings:
    """Return the settings for a save's own folder.

    The trainer loads a folder without a tracker as a save.

    Args:
        path: The folder of the save.
        checkpoint: The save.
        remarks: Further notes for the start.
    """
    weights_only = checkpoint.content is Content.WEIGHTS_ONLY
    return LoadSettings(
        trainer="mindformers",
        path=path,
        settings=(
            TrainerSetting(place=_PATH, value=path, is_path=True),
            TrainerSetting(place=_NO_OPTIMIZER, value=weights_only),
            TrainerSetting(place=_BALANCED, value=False),
        ),
        first=checkpoint.renames,
        remarks=tuple(dict.fromkeys((*remarks, _FROM_THE_BEGINNING))) if weights_only else remarks,
    )


def older_saves(chosen: Checkpoint, saves: Iterable[Checkpoint]) -> tuple[str, ...]:
    """Explain why the save with the highest number is not the newest.

    Step numbers depend on the batch size.
    """
    step, samples = chosen.step, chosen.scalars.samples
    if step is None or samples is None:
        return ()
    higher = [save for save in saves if save.step is not None and save.step > step and save.prefix == chosen.prefix]
    older = [save for save in higher if save.scalars.samples is not None and save.scalars.samples < samples]
    if not older:
        return ()
    save = max(older, key=lambda save: save.step or 0)
    why = f"{save.name} has a greater number but is older, with {save.scalars.samples} of {samples} samples"
    return (f"{why}: the batch size changed.",)
