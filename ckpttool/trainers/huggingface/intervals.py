"""How often Hugging Face's Trainer logs and saves, by its arguments or by `trainer_state.json`.

Source:
    transformers 4.57 and 5.24: `TrainingArguments` (defaults: steps, 500), `TrainerState` (the arguments of the run
    that saved, also if they do not apply because the strategy is another one).
"""

from __future__ import annotations

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.errors import CkptToolError
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.huggingface import STATE
from ckpttool.trainers.huggingface.record import State, read_ends_of_state

_DEFAULT = 500
_BY_STEPS = "steps"


def intervals(config: RunConfig | None, storage: Storage, checkpoint: Checkpoint) -> StepIntervals | None:
    """Return how often a run logs and saves."""
    if config is not None:
        return _of_config(config)
    path = f"{checkpoint.name}/{STATE}"
    try:
        state = read_ends_of_state(storage, path)
    except (ParseError, CkptToolError, OSError):
        return None
    return _of_state(state, path)


def _of_config(config: RunConfig) -> StepIntervals | None:
    view = View(config.settings)
    strategies = {view.get(f"{kind}_strategy") or _BY_STEPS for kind in ("logging", "save")}
    logged, saved = _steps(view, "logging_steps"), _steps(view, "save_steps")
    if strategies != {_BY_STEPS} or logged is None or saved is None:
        return None
    return StepIntervals(logged=logged, saved=saved, path=config.path)


def _steps(view: View, key: str) -> int | None:
    """Return a number of steps. A fraction is a part of the run, whose length is unknown."""
    if view.get(key) is None:
        return _DEFAULT
    return view.count(key, 0) or None


def _of_state(state: State, path: str) -> StepIntervals | None:
    """Return the recorded intervals if the logged steps and the step of the save are multiples of them."""
    logged, saved = state.log_every, state.save_every
    if not logged or not saved or state.step % saved or not (state.losses or state.is_whole_log):
        return None
    if any(step % logged for step, _ in state.losses if step > 1):
        return None
    return StepIntervals(logged=logged, saved=saved, path=path)
