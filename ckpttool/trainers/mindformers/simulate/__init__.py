"""What MindFormers itself would resume from, and by which quirk.

Every `resolve` asks `names` how MindFormers reads a name; what only a simulation needs is imported by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.domain.plan import Simulation
from ckpttool.trainers.mindformers.simulate.names import Pick, StopsError

if TYPE_CHECKING:
    from ckpttool.trainers.mindformers.simulate.seen import MindFormersView
    from ckpttool.trainers.mindformers.simulate.versions import Quirks

__all__ = ["simulate"]


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
        pick = Pick(name=None, because=f"it stops with an error: {stop}")
    return Simulation(
        trainer="mindformers", title="MindFormers", version=version, would_resume=pick.name, because=pick.because
    )


def _pick(view: MindFormersView, quirks: Quirks) -> Pick:
    from ckpttool.trainers.mindformers.simulate import iteration, legacy

    if view.entries is None:
        raise StopsError("the checkpoint folder cannot be listed")
    named = isinstance(view.settings.resume_training, str)
    if not view.entries and quirks.starts_at_random_from_empty_folder and not named:
        return Pick(
            name=None, because="the folder is empty, for which it starts from random weights with only a warning"
        )
    if quirks.has_iterations and _is_newer_layout(view):
        return iteration.select(view, quirks)
    return legacy.select(view, quirks)


def _is_newer_layout(view: MindFormersView) -> bool:
    from ckpttool.trainers.mindformers.simulate.seen import Reading

    if view.settings.use_legacy_format is not None:
        return not view.settings.use_legacy_format
    signs = (view.tracker.reading, view.itself.common.reading)
    return not view.ranks and (bool(view.iterations) or any(sign is not Reading.MISSING for sign in signs))
