"""DeepSpeed: its trees are read, and what it would load of them by itself is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import WithoutLogs

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.abilities import ConfigReader, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class DeepSpeed(WithoutLogs):
    """An engine that a training script loads its state with."""

    name = "deepspeed"
    title = "DeepSpeed"
    records = r"latest(?:_universal)?"
    places = ()
    layout_names = (name,)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a tag."""
        from ckpttool.trainers.deepspeed.layout import DeepSpeedTags

        return (DeepSpeedTags(),)

    @property
    def configs(self) -> ConfigReader | None:
        """Its JSON."""
        from ckpttool.trainers.deepspeed.config import CONFIGS

        return CONFIGS

    @property
    def simulator(self) -> Simulator | None:
        """Its own choice: what `latest` names."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.deepspeed.resumes import choose, told

        return OwnChoice(trainer=self, choose=choose, told=told, by_records=True)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say which sizes its loader refuses."""
        from ckpttool.trainers.deepspeed import resumes

        return resumes.objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say what its counters go on from."""
        from ckpttool.trainers.deepspeed import resumes

        return resumes.effects(resume)


TRAINER: Trainer = DeepSpeed()
