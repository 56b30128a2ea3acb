"""Whether a resume draws the random order of the data again, as the trainer lawfully does."""

from __future__ import annotations

from ckpttool.core.domain.data_position import DataEffect, effect_of
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import CkptToolError
from ckpttool.core.verbs.resolving import resolve
from ckpttool.core.verbs.scanning import Tree


def draws_new_order(tree: Tree, question: TreeQuestion, saved: Step) -> bool:
    """Return whether the data resume at the right position, although the trainer loses the random-number state.

    The next epoch then has another order. Within an epoch, a loader without a state repeats samples instead.

    Args:
        tree: The tree.
        question: How to read the tree.
        saved: The step of the save.
    """
    if tree.trainer is None or not tree.trainer.redraws_data_order:
        return False
    try:
        plan = resolve(replace(question, path=tree.storage.root), ResumeQuestion(before=saved)).decision
    except CkptToolError:
        return False
    return isinstance(plan, ResumePlan) and plan.point.step == saved and effect_of(plan.data) is DataEffect.EXACT
