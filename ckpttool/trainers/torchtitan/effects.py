"""Effects of torchtitan on a resume: its loaders' position, and the numbers of ranks that the loaders refuse.

Source:
    `torchtitan/components/dataloader.py` of torchtitan 0.3.0: each data-parallel rank saves its loader's state under
    its own number, with the number of ranks; a different number of ranks is refused. Tested with saves of 4 ranks: 2
    ranks stop with an AssertionError ("dataloader resharding is not supported yet"), 6 with a CheckpointException.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import against_size, consumed, effect_findings
from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import Code, suspect
from ckpttool.core.domain.question import AskedSizes
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.torchtitan import DP, TRAINER
from ckpttool.trainers.torchtitan.config import left_out

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding

_REFUSES = (
    "torchtitan does not redistribute a loader's state (with --checkpoint.exclude_from_loading dataloader it is "
    "left out, and the data starts from the beginning)"
)
_STATE = "each data-parallel rank continues from its own loader's state"
_OTHER_BATCHES = "each data-parallel rank continues in its own data, but with another batch size: the mixture differs"
_AS_THEY_WERE = "the data set and the batch size are unchanged"
_LEFT_OUT = "`exclude_from_loading` leaves out the data loaders"
_WEIGHTS = "only weights are loaded, so the data starts from the beginning"


def effects(resume: Resume) -> Effects:
    """Return the position at which the loaders continue."""
    read = consumed(resume.plan, resume.inventory, resume.data)
    checkpoint = resume.plan.point.checkpoint
    if checkpoint.content is Content.WEIGHTS_ONLY:
        return _effects_of(GoesOn(effect=DataEffect.RESTARTS, why=_WEIGHTS, samples=read.samples, source=read.source))
    config = resume.config
    if config is not None and config.trainer == TRAINER.name and "dataloader" in left_out(View(config.settings)):
        restarted = GoesOn(effect=DataEffect.RESTARTS, why=_LEFT_OUT, samples=read.samples, source=read.source)
        return _effects_of(restarted, remedy="remove `dataloader` from exclude_from_loading")
    changed = resume.data.new_global_batch is not None and read.changes
    return _effects_of(
        GoesOn(
            effect=DataEffect.REORDERS if changed else DataEffect.EXACT,
            why=_OTHER_BATCHES if changed else _STATE,
            samples=read.samples,
            source=read.source,
            tokens=checkpoint.scalars.tokens,
            repeated=0,
            lost=0,
            exact_if=() if changed else (_AS_THEY_WERE,),
            where=resume.plan.load.path,
        )
    )


def _effects_of(position: GoesOn, *, remedy: str | None = None) -> Effects:
    findings = effect_findings(position, title=TRAINER.title, remedy=remedy)
    return Effects(position=position, settings=(), findings=findings)


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Object to a different number of data-parallel ranks, as far as the requested sizes show this number."""
    saved = dict(checkpoint.facts).get(DP)
    if saved is None:
        return ()
    if requested.data is None and requested.world is not None and requested.world % saved:
        # The data-parallel ranks are a divisor of all ranks.
        message = (
            f"the save was made by {saved} data-parallel ranks, which does not fit {requested.world} ranks, and "
            f"{_REFUSES}"
        )
        remedy = f"start with a multiple of {saved} ranks, {saved} of them data-parallel"
        return (suspect(Code.WORLD_SIZE_REFUSED, message, path=checkpoint.name, remedy=remedy),)
    return tuple(against_size(checkpoint, requested, saved=AskedSizes(data=saved), refuses=_REFUSES))
