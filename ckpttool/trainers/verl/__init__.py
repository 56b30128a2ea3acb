"""verl: reinforcement learning whose workers save one folder for each role, and the driver its data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import WithoutLogs

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.abilities import Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class Verl(WithoutLogs):
    """Its trees as FSDP workers write them, its own choice and what becomes of its data."""

    name = "verl"
    title = "verl"
    records = r"latest_checkpointed_iteration\.txt"
    places = ()
    layout_names = (name,)
    configs = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a save, and in it one a role."""
        from ckpttool.trainers.verl.layout import VerlLayout

        return (VerlLayout(),)

    @property
    def simulator(self) -> Simulator | None:
        """What its tracker names."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.verl.own_choice import choose

        return OwnChoice(trainer=self, choose=choose, by_records=True)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Object to another number of ranks."""
        from ckpttool.trainers.verl.effects import objections

        return objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where its one data loader goes on."""
        from ckpttool.trainers.verl.effects import effects

        return effects(resume)


TRAINER: Trainer = Verl()
