"""verl: reinforcement learning whose workers save one folder for each role, and the driver its data loader."""

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


class Verl:
    """Its trees as FSDP workers write them, its own choice and what becomes of its data."""

    name = "verl"
    title = "verl"
    places = ()
    layout_names = ("verl",)
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
        """One folder a save, and in it one a role."""
        from ckpttool.trainers.verl.layout import VerlLayout

        return (VerlLayout(),)

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: the files' names say how many ranks there were."""
        return Evidence()

    @property
    def simulator(self) -> Simulator | None:
        """What its tracker names."""
        from ckpttool.trainers.verl.load import VerlSimulator

        return VerlSimulator()

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Object to another number of ranks."""
        from ckpttool.trainers.verl.effects import objections

        return objections(checkpoint, asked)

    def effects(self, resume: Resume) -> Effects:
        """Say where its one data loader goes on."""
        from ckpttool.trainers.verl.effects import effects

        return effects(resume)
