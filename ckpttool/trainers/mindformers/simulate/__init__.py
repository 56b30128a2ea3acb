"""The checkpoint that MindFormers chooses on its own, and the quirks that affect this choice.

`own_names` parses names as MindFormers does; the modules of this package are imported only by a simulation.
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
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.mindformers.simulate.view import MindFormersView


def view_of(start: OwnStart, folder: Storage) -> MindFormersView:
    """Return MindFormers' view of a folder, with the config's settings, or with settings that fit the newest save.

    Args:
        start: The start, with the tree and the config.
        folder: The folder that `load_checkpoint` names.
    """
    from ckpttool.trainers.mindformers.load import LOAD_FORMAT
    from ckpttool.trainers.mindformers.simulate.view import MindFormersSettings, view_for_mindformers
    from ckpttool.trainers.mindformers.train_config import ConfigView, with_trainer_defaults

    newest = next(iter(newest_first(start.inventory.checkpoints)), None)
    world = start.world_size
    if start.config is None:
        load_format = LOAD_FORMAT[newest.format if newest else FormatName.MINDSPORE_CKPT]
        settings = MindFormersSettings(load_ckpt_format=load_format)
    else:
        mine = with_trainer_defaults(start.config)
        monitors = mine.use_checkpoint_health_monitor if mine.use_legacy_format else mine.health_check_picks
        settings = MindFormersSettings(
            load_ckpt_format=mine.load_ckpt_format,
            use_checkpoint_health_monitor=monitors,
            resume_by_last_timestamp_ckpt=ConfigView(mine.settings).is_on("resume_by_last_timestamp_ckpt"),
            use_legacy_format=mine.use_legacy_format,
        )
        world = world or mine.world_size
    if newest is not None:  # otherwise only the folders show the number of ranks, and no folder has a checkpoint
        world = newest.topology.world_size or 1
    settings = replace(settings, world_size=world or None)
    return view_for_mindformers(folder, settings, output=open_storage(above(start.storage.root)))


def simulate(view: MindFormersView, version: str) -> Simulation:
    """Return the checkpoint that this version of MindFormers would choose on its own, and the reason.

    This is only the selection: the chosen files may still fail to load. If the names already show that the files will
    not load, the reason says so.

    Args:
        view: The inputs of the choice.
        version: `2.1`, `2.1.0`, …

    Raises:
        UsageError: The version is unknown.
    """
    from ckpttool.trainers.mindformers.simulate.choice import choose
    from ckpttool.trainers.mindformers.simulate.versions import series_of

    series = series_of(version)
    try:
        pick = choose(view, series)
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


def stopped_at(stop: StopsError) -> Simulation:
    """Return the result of a start that stops with an error."""
    return own_result(None, Outcome.STOPS, f"it stops with an error: {stop}")


def own_result(name: str | None, outcome: Outcome, because: str) -> Simulation:
    """Return the result of a start of the newest known version, judged by the config.

    Args:
        name: The save that the start would load; None for a start without a save.
        outcome: The result.
        because: The reason.
    """
    from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS

    return Simulation(
        trainer="mindformers",
        title="MindFormers",
        version=KNOWN_VERSIONS[-1],
        would_resume=name,
        outcome=outcome,
        because=because,
    )
