"""How often Hugging Face's Trainer logs and saves, by its arguments or by `trainer_state.json`.

Source:
    transformers 4.57 and 5.24: `TrainingArguments` (defaults: steps, 500), `TrainerState` (the arguments of the run
    that saved, also if they do not apply because the strategy is another one).
"""

from __future__ import annotations

from math import ceil, isfinite

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.errors import CkptToolError
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.huggingface import STATE
from ckpttool.trainers.huggingface.record import State, read_ends_of_state

_DEFAULT = 500
_BY_STEPS, _BY_EPOCHS = "steps", "epoch"


def intervals(config: RunConfig | None, storage: Storage, checkpoint: Checkpoint | None) -> StepIntervals | None:
    """Return how often a run logs and saves."""
    if config is not None:
        return _of_config(config)
    if checkpoint is None:
        return None
    path = f"{checkpoint.name}/{STATE}"
    try:
        state = read_ends_of_state(storage, path)
    except (ParseError, CkptToolError, OSError):
        return None
    return _of_state(state, path)


def _of_config(config: RunConfig) -> StepIntervals | None:
    view = View(config.settings)
    logging, saving = (_strategy(view, kind) for kind in ("logging", "save"))
    if logging == "no" and saving in {_BY_STEPS, _BY_EPOCHS}:
        return StepIntervals(logged=None, saved=None, path=config.path, logs=False)
    if logging not in {_BY_STEPS, _BY_EPOCHS} or saving not in {_BY_STEPS, _BY_EPOCHS}:
        return None
    logged, saved = _steps(view, "logging_steps"), _steps(view, "save_steps")
    if (logging == _BY_STEPS and logged is None) or (saving == _BY_STEPS and saved is None):
        return None
    return StepIntervals(
        logged=logged if logging == _BY_STEPS else None,
        saved=saved if saving == _BY_STEPS else None,
        path=config.path,
    )


def _strategy(view: View, kind: str) -> object:
    strategy = view.get(f"{kind}_strategy")
    return _BY_STEPS if strategy is None else strategy


def _steps(view: View, key: str) -> int | None:
    """Return a number of steps; a fraction is a part of `max_steps`, without which the run's length is unknown."""
    value = view.get(key)
    steps = _number(_DEFAULT if value is None else value)
    if steps is None or steps <= 0:
        return None
    if steps >= 1:
        return int(steps) if steps == int(steps) else None
    length = _number(view.get("max_steps"))
    return None if length is None or length < 1 else ceil(int(length) * steps)


def _number(value: object) -> float | None:
    """Return a finite number, which the text of a setting may also be."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _of_state(state: State, path: str) -> StepIntervals | None:
    """Return the recorded intervals if the logged steps and the step of the save are multiples of them."""
    logged, saved = state.log_every, state.save_every
    if not logged or not saved or state.step % saved or not (state.losses or state.is_whole_log):
        return None
    if any(step % logged for step, _ in state.losses if step > 1):
        return None
    return StepIntervals(logged=logged, saved=saved, path=path)
