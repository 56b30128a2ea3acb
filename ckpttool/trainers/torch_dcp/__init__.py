"""torch.distributed.checkpoint (DCP): folders of slices, as a training loop of one's own saves them.

Layouts of several trainers stand on it: `store` reads one such folder, `saves` a tree of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.common.not_started import WithoutLogs

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes
    from ckpttool.trainers.abilities import Simulator
    from ckpttool.trainers.base import Effects, Layout, Resume, Trainer


class TorchDcp(WithoutLogs):
    """A loop that saves with DCP: its trees are read; what it does around a save is its own."""

    name = "torch-dcp"
    title = "torch.distributed.checkpoint"
    records = r""
    places = ()
    layout_names = (name,)
    configs = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One folder a save, whatever it is called."""
        from ckpttool.trainers.torch_dcp.layout import TorchDcpLayout

        return (TorchDcpLayout(),)

    @property
    def simulator(self) -> Simulator | None:
        """It takes none by itself."""
        from ckpttool.trainers.common.own_choice import OwnChoice
        from ckpttool.trainers.torch_dcp.resumes import choose

        return OwnChoice(trainer=self, choose=choose)

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Object to none: slices are cut anew for any number of ranks."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say that its data are the application's."""
        from ckpttool.trainers.torch_dcp.resumes import effects

        return effects(resume)


TRAINER: Trainer = TorchDcp()
