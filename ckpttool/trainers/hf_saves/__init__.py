"""What Hugging Face's Trainer and Accelerate share: the first writes its saves with parts of the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.domain.checkpoint import Checkpoint
    from ckpttool.domain.finding import Finding
    from ckpttool.domain.question import AskedSizes


def objections(checkpoint: Checkpoint, asked: AskedSizes) -> tuple[Finding, ...]:
    """Say nothing against a save: whole files load on any number of ranks, and slices are cut anew."""
    from ckpttool.decide.data_effects import against_size
    from ckpttool.domain.question import AskedSizes

    saved = AskedSizes(world=checkpoint.topology.world_size)
    return tuple(against_size(checkpoint, asked, saved=saved, refuses=None))
