"""How often Lightning logs and saves, by the YAML of its command line.

Source:
    Lightning 2.6.6: `Trainer` (`log_every_n_steps` is 50 by default), `ModelCheckpoint` (it saves after validation
    unless `every_n_train_steps` is set).
"""

from __future__ import annotations

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.lightning.callbacks import fit_prefix, saving_callbacks

_DEFAULT = 50


def intervals(config: RunConfig | None, storage: Storage, checkpoint: Checkpoint | None) -> StepIntervals | None:
    """Return how often a run logs and saves. Saves do not record it."""
    del storage, checkpoint
    if config is None:
        return None
    view = View(config.settings)
    trainer = f"{fit_prefix(view)}trainer"
    saved = [view.count(f"{callback}.every_n_train_steps", 0) for callback in saving_callbacks(view)]
    saved = [steps for steps in saved if steps > 0]
    logged = view.count(f"{trainer}.log_every_n_steps", _DEFAULT)
    if not saved or logged < 1 or view.get(f"{trainer}.logger") is False:
        return None
    return StepIntervals(logged=logged, saved=min(saved), path=config.path)
