"""Report configs that request no more steps than have been trained.

Such a start does nothing, and exits successfully.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Finding, suspect
from ckpttool.trainers.findings import TrainersCode

if TYPE_CHECKING:
    from ckpttool.core.decide.lint_engine import View
    from ckpttool.trainers.base import Resume


def complete(resume: Resume, view: View, key: str, *, ends: str) -> Finding:
    """Report that the training run of a config is complete.

    Args:
        resume: The resume from the chosen checkpoint.
        view: The config's settings.
        key: The limit that is reached.
        ends: The trainer's reaction, worded to follow the trainer's name.
    """
    point, config, name = resume.plan.point, resume.config, key.rpartition(".")[2]
    return suspect(
        TrainersCode.TRAINING_COMPLETE,
        f"{point.checkpoint.name}, step {point.step}: `{name}: {view.get(key)}` is reached, and {ends}",
        path=None if config is None else config.path,
        line=view.line(key),
        remedy=f"nothing is left to train; to continue, raise {name}",
    )
