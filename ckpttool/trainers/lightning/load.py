"""What makes Lightning load exactly one save."""

from __future__ import annotations

from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.load_settings import LoadSettings, Place, TrainerSetting


def settings(inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings:
    """Name the file or folder: `trainer.fit(..., ckpt_path=PATH)`, or the same on a LightningCLI's command line."""
    path = checkpoint.name if inventory.root == "." else f"{inventory.root}/{checkpoint.name}"
    in_code, on_line = Place.parsed("code:trainer.fit(..., ckpt_path)"), Place.parsed("argument:--ckpt_path")
    return LoadSettings(
        trainer="lightning",
        path=path,
        settings=(
            TrainerSetting(place=in_code, value=path, is_path=True),
            TrainerSetting(place=on_line, value=path, is_path=True, is_alternative=True),
        ),
        remarks=("Never say ckpt_path='last': it takes the newest file called last*.ckpt, whatever is in it.",),
    )
