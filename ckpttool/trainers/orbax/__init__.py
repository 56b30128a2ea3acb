"""Orbax: what JAX trainings save with its CheckpointManager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import WithoutLogs

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.abilities import Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class Orbax(WithoutLogs):
    """A library that a training script saves with: its trees, and what it calls the latest of them."""

    name = "orbax"
    title = "Orbax"
    records = r"_CHECKPOINT_METADATA|_METADATA|_sharding"
    places = ("checkpoints",)
    layout_names = (name,)
    configs = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a step, and in it one an item."""
        from ckpttool.trainers.orbax.layout import OrbaxLayout

        return (OrbaxLayout(),)

    @property
    def simulator(self) -> Simulator | None:
        """Its `latest_step()`."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.orbax.resumes import choose

        return OwnChoice(trainer=self, choose=choose)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing: arrays are cut anew when they are restored."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say whether an item tells where the data go on."""
        from ckpttool.trainers.orbax.resumes import effects

        return effects(resume)


TRAINER: Trainer = Orbax()
