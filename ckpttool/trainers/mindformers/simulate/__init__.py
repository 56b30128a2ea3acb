"""What MindFormers itself would resume from, and by which quirk.

Every `resolve` asks `names` how MindFormers reads a name; what only a simulation needs is imported by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import Outcome, Simulation
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.storage import above, open_storage
from ckpttool.trainers.mindformers.own_names import Pick, StopsError, UnreadError

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.plan import JudgedStart, ResumePlan
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.mindformers.simulate.versions import Quirks
    from ckpttool.trainers.mindformers.simulate.view import MindFormersView
    from ckpttool.trainers.mindformers.train_config import TrainConfig

__all__ = ["MindFormersSimulator", "simulate", "view_of"]


class MindFormersSimulator:
    """MindFormers' own choice, with `resume_training: True`."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Look at the folder as MindFormers would, with the config's settings or those that fit the newest save."""
        from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS

        return simulate(view_of(start, start.storage), version or KNOWN_VERSIONS[-1])

    def as_it_stands(self, start: OwnStart, plan: ResumePlan) -> JudgedStart:
        """Go by what the config names."""
        from ckpttool.trainers.mindformers.simulate.own_start import as_it_stands

        return as_it_stands(start, plan)


def view_of(start: OwnStart, folder: Storage) -> MindFormersView:
    """Return what MindFormers would see in a folder, with the config's settings or those that fit the newest save.

    Args:
        start: With the tree and the config.
        folder: That which `load_checkpoint` names.
    """
    from ckpttool.trainers.mindformers.load import LOAD_FORMAT
    from ckpttool.trainers.mindformers.simulate.view import MindFormersSettings, view_for_mindformers
    from ckpttool.trainers.mindformers.train_config import ConfigView, with_trainer_defaults

    mine = None if start.config is None else with_trainer_defaults(start.config)
    newest = next(iter(newest_first(start.inventory.checkpoints)), None)
    if mine is None:
        load_format = LOAD_FORMAT[newest.format if newest else FormatName.MINDSPORE_CKPT]
        settings = MindFormersSettings(load_ckpt_format=load_format)
    else:
        settings = MindFormersSettings(
            load_ckpt_format=mine.load_ckpt_format,
            use_checkpoint_health_monitor=mine.use_checkpoint_health_monitor
            if mine.use_legacy_format
            else mine.health_check_picks,
            resume_by_last_timestamp_ckpt=ConfigView(mine.settings).is_on("resume_by_last_timestamp_ckpt"),
            use_legacy_format=mine.use_legacy_format,
        )
    settings = replace(settings, world_size=_world_of(newest, start.world_size, mine))
    return view_for_mindformers(folder, settings, output=open_storage(above(start.storage.root)))


def _world_of(newest: Checkpoint | None, world_size: int | None, config: TrainConfig | None) -> int | None:
    """Return how many ranks would start; None where only the folders tell, of which none holds a checkpoint."""
    if newest is not None:
        return newest.topology.world_size or 1
    return world_size or (None if config is None else config.world_size)


def simulate(view: MindFormersView, version: str) -> Simulation:
    """Tell which checkpoint this version of MindFormers would pick by itself, and why.

    It is the selection alone: whether the picked files then load is another matter, and the sentence says so where
    the names already show that they will not.

    Args:
        view: What the selection looks at.
        version: `2.1`, `2.1.0`, …

    Raises:
        UsageError: The version is not known.
    """
    from ckpttool.trainers.mindformers.simulate.versions import quirks_of

    quirks = quirks_of(version)
    try:
        pick = _pick(view, quirks)
    except StopsError as stop:
        pick = Pick(name=None, because=f"it stops with an error: {stop}", outcome=Outcome.STOPS)
    except UnreadError as unread:
        pick = Pick(name=None, because=str(unread), outcome=Outcome.UNKNOWN)
    return Simulation(
        trainer="mindformers",
        title="MindFormers",
        version=version,
        would_resume=pick.name,
        outcome=pick.outcome,
        because=pick.because,
        older="mindformers",
    )


def _pick(view: MindFormersView, quirks: Quirks) -> Pick:
    from ckpttool.trainers.mindformers.simulate import iteration, legacy

    if view.entries is None:
        raise StopsError("the checkpoint folder cannot be listed")
    if not view.entries and quirks.starts_at_random_from_empty_folder:
        because = "the folder is empty, for which it starts from random weights with only a warning"
        return Pick(name=None, because=because, outcome=Outcome.SCRATCH)
    if quirks.has_iterations and _is_newer(view):
        return iteration.select(view, quirks)
    return legacy.select(view, quirks)


def _is_newer(view: MindFormersView) -> bool:
    """Tell which of its two ways it goes: as the config says, else as the folder looks."""
    from ckpttool.trainers.mindformers.simulate.view import Reading

    if view.settings.use_legacy_format is not None:
        return not view.settings.use_legacy_format
    signs = (view.tracker.reading, view.itself.common.reading)
    return not view.ranks and (bool(view.iterations) or any(sign is not Reading.MISSING for sign in signs))
