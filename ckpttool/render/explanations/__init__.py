"""What each finding means, for whoever was woken by it. One module a kind of trouble."""

from __future__ import annotations

from ckpttool.render.explanations.base import Explanation
from ckpttool.render.explanations.checkpoints import CHECKPOINTS
from ckpttool.render.explanations.files import FILES
from ckpttool.render.explanations.lint import LINT
from ckpttool.render.explanations.preflight import PREFLIGHT
from ckpttool.render.explanations.records import RECORDS
from ckpttool.render.explanations.settings import SETTINGS
from ckpttool.render.explanations.shards import SHARDS
from ckpttool.render.explanations.starts import STARTS
from ckpttool.render.explanations.training import TRAINING

EXPLANATIONS: tuple[Explanation, ...] = (
    *CHECKPOINTS,
    *SHARDS,
    *RECORDS,
    *FILES,
    *SETTINGS,
    *STARTS,
    *TRAINING,
    *LINT,
    *PREFLIGHT,
)
"""One for each `Code`, what costs a checkpoint first."""

__all__ = ["EXPLANATIONS", "Explanation"]
