"""Lightning (PyTorch Lightning): one file a save, or one folder of torch's distributed checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import WithoutLogs

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.abilities import ConfigReader, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class Lightning(WithoutLogs):
    """Its trees, its own choice and what becomes of its data, and what its configs get wrong."""

    name = "lightning"
    title = "Lightning"
    records = r""
    places = ("checkpoints", "lightning_logs/version_*/checkpoints")
    layout_names = (name,)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Files or folders called `*.ckpt`."""
        from ckpttool.trainers.lightning.layout import LightningLayout

        return (LightningLayout(),)

    @property
    def configs(self) -> ConfigReader | None:
        """The YAML of its command line."""
        from ckpttool.trainers.lightning.config import CONFIGS

        return CONFIGS

    @property
    def simulator(self) -> Simulator | None:
        """What `ckpt_path="last"` finds."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.lightning.own_choice import choose, told

        return OwnChoice(trainer=self, choose=choose, told=told)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing: a file is whole for any number of ranks, and a folder is cut anew."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say where its data go on, which its loader decides."""
        from ckpttool.trainers.lightning.effects import effects

        return effects(resume)


TRAINER: Trainer = Lightning()
