"""Report folders of later saves, at which a resumed run stops when it reaches their step again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Finding, note
from ckpttool.trainers.findings import TrainersCode

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.trainers.base import Resume


def blocked(resume: Resume, later: list[Checkpoint], *, unless: str) -> tuple[Finding, ...]:
    """Report that the folder of a later save exists.

    Args:
        resume: The resume from the chosen checkpoint.
        later: The saves whose names have a higher step, the lowest first.
        unless: The exception, worded to end the sentence: ", unless …"; empty for no exception.
    """
    if not later:
        return ()
    name = later[0].name
    others = f" (and {len(later) - 1} more)" if len(later) > 1 else ""
    message = (
        f"{name}{others} is later than step {resume.plan.point.step}: a run that saves to this folder stops with a "
        f"FileExistsError when it saves that step again{unless}"
    )
    remedy = "move it out of the folder, or let the run save to a new folder"
    return (note(TrainersCode.NEXT_SAVE_BLOCKED, message, path=name, remedy=remedy),)
