"""Code shared by Hugging Face's Trainer and Accelerate, because Trainer writes its saves with parts of Accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.question import AskedSizes

WEIGHTS = r"(?:adapter_|pytorch_)?model(?:-(?P<part>[0-9]{5})-of-(?P<parts>[0-9]{5}))?\.(?:safetensors|bin)"
"""Names of the files with a model's weights."""


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Report different sizes, but only as notes.

    Any number of ranks can load complete files, and slices are resharded.
    """
    from ckpttool.core.decide.data_effects import against_size
    from ckpttool.core.domain.question import AskedSizes

    saved = AskedSizes(world=checkpoint.topology.world_size)
    return tuple(against_size(checkpoint, requested, saved=saved, refuses=None))
