"""How often torchtitan logs and saves, by its config in TOML.

Source:
    torchtitan 0.1.0, 0.2.0 and 0.2.2: `log_freq` is 10 by default, and `interval` 500.
"""

from __future__ import annotations

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.torchtitan import ON, SECTION


def intervals(config: RunConfig | None, storage: Storage, checkpoint: Checkpoint | None) -> StepIntervals | None:
    """Return how often a run logs and saves. Saves do not record it."""
    del storage, checkpoint
    if config is None:
        return None
    view = View(config.settings)
    logged, saved = view.count("metrics.log_freq", 10), view.count(f"{SECTION}.interval", 500)
    if logged < 1 or saved < 1 or not any(view.is_on(key) for key in ON):
        return None
    return StepIntervals(logged=logged, saved=saved, path=config.path)
