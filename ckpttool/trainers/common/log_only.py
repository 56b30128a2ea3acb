"""A trainer of which ckpttool reads the logs, and neither checkpoints nor configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ckpttool.domain.expectation import Evidence

if TYPE_CHECKING:
    from ckpttool.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.domain.finding import Finding
    from ckpttool.domain.question import AskedSizes
    from ckpttool.domain.settings import RunConfig
    from ckpttool.storage.base import Storage
    from ckpttool.trainers.base import Effects, Resume


class LogOnly:
    """What such a trainer answers to all that is not about its logs.

    The answers are final: a trainer of which more is read cannot take the rest from here in silence, it answers every
    question itself.
    """

    places: Final = ()
    layouts: Final = ()
    layout_names: Final = ()
    health_file: Final = None
    configs: Final = None
    launch: Final = None
    asd_dialects: Final = ()
    scalars: Final = None
    simulator: Final = None
    log_places: Final = None
    title: str

    def evidence(self, output: Storage, config: RunConfig | None) -> Evidence:
        """Say nothing: its trees are not read."""
        return Evidence()

    def objections(self, inventory: Inventory, checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
        """Say nothing: its trees are not read."""
        return ()

    def effects(self, resume: Resume) -> Effects:
        """Say that nobody knows."""
        return no_effects(self.title)


def no_effects(title: str) -> Effects:
    """Say that nobody knows what a trainer makes of a resume."""
    from ckpttool.domain.data_position import Unknown
    from ckpttool.trainers.base import Effects

    return Effects(position=Unknown(why=f"ckpttool does not know how {title} resumes"), settings=(), findings=())
