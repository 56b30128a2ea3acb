"""What the logs of a run will show about its next resume."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.domain.finding import Finding, note
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.domain.units import counted
from ckpttool.core.verbs.scanning import Tree
from ckpttool.postflight.findings import PostflightCode
from ckpttool.postflight.rules.columns import ENOUGH

_ADVICE = "log every step, or every 10 steps and save every 100"
_NEVER = "postflight will not be able to judge a resume of this run"


def launch_notes(tree: Tree, plan: ResumePlan, config: RunConfig | None) -> Iterator[Finding]:
    """Report a run that logs too rarely for a judgement of its resume.

    Args:
        tree: The tree.
        plan: The plan.
        config: The config of the run. None if it is unknown.
    """
    if tree.trainer is None:
        return
    if config is not None and config.trainer != tree.trainer.name:
        config = None
    intervals = tree.trainer.intervals(config, tree.storage, plan.point.checkpoint)
    why = None if intervals is None else too_rarely(intervals)
    if intervals is not None and why is not None:
        yield note(PostflightCode.RESUME_NOT_PROVABLE, f"{why}: {_ADVICE}", path=intervals.path)


def too_rarely(intervals: StepIntervals) -> str | None:
    """Return why the logs cannot prove a resume, or None if they may.

    A run that stops right before a checkpoint repeats the most steps.
    """
    if not intervals.logs:
        return f"{_NEVER}, because no loss is logged"
    if intervals.logged is None or intervals.saved is None:
        return _by_epochs(intervals)
    rows = intervals.saved // intervals.logged
    if intervals.logged == 1 or rows >= ENOUGH:
        return None
    how_often = f"the loss is logged every {intervals.logged} steps and a checkpoint is saved every {intervals.saved}"
    if rows <= 1:
        return f"{_NEVER}, because {how_often}"
    return (
        f"postflight will not be able to prove a resume of this run, because {how_often}, so it repeats at most "
        f"{counted(rows, 'logged step')} of {ENOUGH}"
    )


def _by_epochs(intervals: StepIntervals) -> str | None:
    """Return the same for a run that logs or saves once per epoch, whose length is unknown."""
    if intervals.logged is not None:
        return None
    if intervals.saved is None:
        return f"{_NEVER}, because the loss is logged once per epoch, as often as a checkpoint is saved"
    longest = counted(intervals.saved // 2, "step")
    how_often = f"the loss is logged once per epoch and a checkpoint is saved every {intervals.saved} steps"
    return f"{_NEVER} if an epoch has more than {longest}, because {how_often}"
