"""What verl calls its saves and what lies in them.

Source: verl/utils/checkpoint/fsdp_checkpoint_manager.py and verl/trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

import re

from ckpttool.domain.shard import ShardRole
from ckpttool.domain.units import STEP_DIGITS, Step

ROLES = ("actor", "critic")
"""Folders of a save, one for each model that is trained."""
DATA = "data.pt"
"""Where the data loader stood; the driver has one for all ranks."""

SAVE = rf"global_step_([0-9]{{1,{STEP_DIGITS}}})"
STATES = r"(?P<kind>model|optim|extra_state)_world_size_(?P<world>[0-9]{1,7})_rank_(?P<rank>[0-9]{1,7})\.pt"
KINDS = {"model": ShardRole.MODEL, "optim": ShardRole.OPTIMIZER, "extra_state": ShardRole.STATE}
"""By what the name of a rank's file begins with."""


def step_of(name: str) -> Step | None:
    """Return the step of a save's folder; None where a name is none of one."""
    match = re.fullmatch(SAVE, name)
    return None if match is None else Step(int(match[1]))


def folder_of(step: Step) -> str:
    """Return what the save of a step is called."""
    return f"global_step_{step}"
