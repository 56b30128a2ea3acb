"""Orbax: what JAX trainings save with its CheckpointManager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.expectation import Evidence

if TYPE_CHECKING:
    from ckpttool.domain.asd import AsdDialect
    from ckpttool.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.domain.finding import Finding
    from ckpttool.domain.question import AskedSizes
    from ckpttool.domain.settings import RunConfig
    from ckpttool.logs.base import LogFormat, LogPlaces
    from ckpttool.storage.base import Storage
    from ckpttool.trainers.abilities import ConfigReader, HealthFile, LaunchTarget, OwnScalars, OwnWords, Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume


class Orbax:
    """A library that a training script saves with: its trees, and what it calls the latest of them."""

    name = "orbax"
    title = "Orbax"
    places = ("checkpoints",)
    layout_names = ("orbax",)
    log_formats: tuple[LogFormat, ...] = ()
    log_places: LogPlaces | None = None
    health_file: HealthFile | None = None
    configs: ConfigReader | None = None
    launch: LaunchTarget | None = None
    words: OwnWords | None = None
    asd_dialects: tuple[AsdDialect, ...] = ()
    scalars: OwnScalars | None = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a step, and in it one an item."""
        from ckpttool.trainers.orbax.layout import OrbaxLayout

        return (OrbaxLayout(),)

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: each save says itself what belongs to it."""
        return Evidence()

    @property
    def simulator(self) -> Simulator | None:
        """Its `latest_step()`."""
        from ckpttool.trainers.orbax.resumes import OrbaxSimulator

        return OrbaxSimulator()

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing: arrays are cut anew when they are restored."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say whether an item tells where the data go on."""
        from ckpttool.trainers.orbax.resumes import effects

        return effects(resume)
