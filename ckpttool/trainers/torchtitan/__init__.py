"""torchtitan: `checkpoint/step-N/`, each a folder of torch.distributed.checkpoint."""

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


class Torchtitan:
    """Its trees, its own choice and what becomes of its data; its configs are not read."""

    name = "torchtitan"
    title = "torchtitan"
    places = ("checkpoint", "outputs/checkpoint")
    layout_names = ("torchtitan",)
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
        """One folder a save."""
        from ckpttool.trainers.torchtitan.layout import TorchtitanLayout

        return (TorchtitanLayout(),)

    @property
    def simulator(self) -> Simulator | None:
        """The highest step."""
        from ckpttool.trainers.torchtitan.choice import TorchtitanSimulator

        return TorchtitanSimulator()

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: each save's record says what belongs to it."""
        return Evidence()

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Object to another number of data-parallel ranks."""
        from ckpttool.trainers.torchtitan.effects import objections

        return objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where the loaders of its data-parallel ranks go on."""
        from ckpttool.trainers.torchtitan.effects import effects

        return effects(resume)
