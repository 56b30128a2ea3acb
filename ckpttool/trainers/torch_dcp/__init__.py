"""torch.distributed.checkpoint (DCP): folders of slices, as a training loop of one's own saves them.

Layouts of several trainers stand on it: `store` reads one such folder, `saves` a tree of them.
"""

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


class TorchDcp:
    """A loop that saves with DCP: its trees are read; what it does around a save is its own."""

    name = "torch-dcp"
    title = "torch.distributed.checkpoint"
    places = ()
    layout_names = ("torch-dcp",)
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
        """One folder a save, whatever it is called."""
        from ckpttool.trainers.torch_dcp.layout import TorchDcpLayout

        return (TorchDcpLayout(),)

    @property
    def simulator(self) -> Simulator | None:
        """It takes none by itself."""
        from ckpttool.trainers.torch_dcp.resuming import TorchDcpSimulator

        return TorchDcpSimulator()

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: each save's record says what belongs to it."""
        return Evidence()

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Object to none: slices are cut anew for any number of ranks."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say that its data are the application's."""
        from ckpttool.trainers.torch_dcp.resuming import effects

        return effects(resume)
