"""What makes Lightning load exactly one save."""

from __future__ import annotations

from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.load_settings import LoadSettings, Place, TrainerSetting


def settings(inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings:
    """Name the file or folder: `trainer.fit(…, ckpt_path=PATH)`, or the same on a LightningCLI's command line."""
    path = checkpoint.name if inventory.root == "." else f"{inventory.root}/{checkpoint.name}"
    setting = TrainerSetting(place=Place.parsed("argument:--ckpt_path"), value=path, is_path=True)
    return LoadSettings(trainer="lightning", path=path, settings=(setting,))
