"""torchtitan: `checkpoint/step-N/`, each a folder of torch.distributed.checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import NotStarted

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.core.logs.base import LogFormat
    from ckpttool.trainers.abilities import ConfigReader, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class Torchtitan(NotStarted):
    """Its trees, its own choice and what becomes of its data, and what its configs get wrong."""

    name = "torchtitan"
    title = "torchtitan"
    records = r".+\.index\.json"
    places = ("checkpoint", "outputs/checkpoint")
    layout_names = (name,)
    log_places = None
    words = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a save."""
        from ckpttool.trainers.torchtitan.layout import TorchtitanLayout

        return (TorchtitanLayout(),)

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """What its ranks print."""
        from ckpttool.trainers.torchtitan.log import TorchtitanLog

        return (TorchtitanLog(),)

    @property
    def configs(self) -> ConfigReader | None:
        """Its TOML, up to 0.2."""
        from ckpttool.trainers.torchtitan.config import CONFIGS

        return CONFIGS

    @property
    def simulator(self) -> Simulator | None:
        """The highest step."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.torchtitan.own_choice import choose, told

        return OwnChoice(trainer=self, choose=choose, told=told)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Object to another number of data-parallel ranks."""
        from ckpttool.trainers.torchtitan.effects import objections

        return objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where the loaders of its data-parallel ranks go on."""
        from ckpttool.trainers.torchtitan.effects import effects

        return effects(resume)


TRAINER: Trainer = Torchtitan()
