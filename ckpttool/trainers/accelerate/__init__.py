"""Hugging Face's Accelerate: its saves, its own choice, and how it is told to load; its scripts are Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import WithoutLogs

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.abilities import Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class Accelerate(WithoutLogs):
    """Its trees and what it makes of a resume."""

    name = "accelerate"
    title = "Accelerate"
    records = r".+\.index\.json"
    places: tuple[str, ...] = ()
    layout_names = (name,)
    configs = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a save."""
        from ckpttool.trainers.accelerate.layout import AccelerateLayout

        return (AccelerateLayout(),)

    @property
    def simulator(self) -> Simulator | None:
        """What `load_state()` finds."""
        from ckpttool.trainers.accelerate.own_choice import choose
        from ckpttool.trainers.common.own_choice import OwnChoice

        return OwnChoice(trainer=self, choose=choose)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing against a save: whole files load on any number of ranks, and slices are cut anew."""
        from ckpttool.trainers.hf_saves import objections

        return objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where its data go on, which its script decides."""
        from ckpttool.trainers.accelerate.resumes import effects

        return effects(resume)


TRAINER: Trainer = Accelerate()
