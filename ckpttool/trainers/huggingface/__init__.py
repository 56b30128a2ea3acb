"""Hugging Face's Trainer: its saves, its logs, and how it is told to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import NotStarted

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.core.logs.base import LogFormat, LogPlaces
    from ckpttool.trainers.abilities import ConfigReader, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class HuggingFace(NotStarted):
    """What ckpttool asks of it, and what its arguments get wrong."""

    name = "huggingface"
    title = "Hugging Face's Trainer"
    records = r"(?:trainer_state|config|adapter_config)\.json|.+\.index\.json|latest"
    places: tuple[str, ...] = ("outputs", "output")
    layout_names = ("hf-trainer",)
    words = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a save."""
        from ckpttool.trainers.huggingface.layout import HfTrainerLayout

        return (HfTrainerLayout(),)

    @property
    def log_formats(self) -> tuple[LogFormat, ...]:
        """The history that it saves with each checkpoint."""
        from ckpttool.trainers.huggingface.log import HfTrainer

        return (HfTrainer(),)

    @property
    def log_places(self) -> LogPlaces | None:
        """In the saves themselves."""
        from ckpttool.trainers.huggingface.places import HfLogs

        return HfLogs()

    @property
    def configs(self) -> ConfigReader | None:
        """Arguments of Trainer, in YAML or JSON."""
        from ckpttool.trainers.huggingface.config import CONFIGS

        return CONFIGS

    @property
    def simulator(self) -> Simulator | None:
        """What `resume_from_checkpoint=True` finds."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.huggingface.own_choice import choose, told

        return OwnChoice(trainer=self, choose=choose, told=told)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing against a save: whole files load on any number of ranks, and slices are cut anew."""
        from ckpttool.trainers.hf_saves import objections

        return objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where the data go on: it skips as many batches as steps were done, of whatever size they are now."""
        from ckpttool.trainers.huggingface.effects import effects

        return effects(resume)


TRAINER: Trainer = HuggingFace()
