"""The facts in one file by `torch.save`: counters, and whether it has a model and an optimizer.

Source:
    the saving code of nanoGPT (`train.py`), mmengine 0.10 (`Runner.save_checkpoint`), timm 1.0 (`CheckpointSaver`),
    ultralytics 8.4 (`BaseTrainer.save_model`), fvcore (`Checkpointer.save`, of Detectron2) and fairseq
    (`Trainer.state_dict`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.formats.torch.pickle_objects import Made, Tensor
from ckpttool.core.formats.torch.plain import value_at
from ckpttool.trainers.common.saved_values import count_at

_STEPS = ("global_step", "iter_num", "iteration", "iter", "step", "step_count", "num_steps", "num_updates")
"""Names of the counter of steps; the first one never counts anything else."""
_EPOCHS = ("epoch", "current_epoch")
_HOLDERS = (
    "meta",
    "state",
    "train_state",
    "training_state",
    "trainer_state",
    "trainer",
    "progress",
    "counters",
    "extra_state",
    "info",
)
"""Names of dictionaries in which loops keep their counters, one level down; none contains settings."""
_UPDATES = "optimizer_history"
"""fairseq's list, whose last entry has the number of updates."""
_OPTIMIZER = r"(?:last_)?optim(?:izer)?s?(?:_states?|_state_dicts?|_dict)?"
_NO_MODEL = r"(?i).*(?:sched|rng|random|sampler|scaler|loader|metric|hist|hub|arg|config|cfg).*"
"""Names of values whose tensors are not those of a model."""
_MOST_SEARCHED = 20_000
"""Maximum number of values to search for a tensor, because an object may contain any number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The facts in one file."""

    step: int | None = None
    step_trouble: str | None = None
    """Why the step is unknown although there are counters."""
    epoch: int | None = None
    """The epoch as the loop counts it: some count finished epochs, others number them from 0."""
    has_tensors: bool = False
    """Whether there is any tensor: weights alone may be saved without a dictionary around them."""
    has_model: bool = False
    has_optimizer: bool = False
    may_have_optimizer: bool = False
    """Whether a value is named as an optimizer's state, but has neither parameter groups nor tensors."""

    @property
    def is_full(self) -> bool:
        """Whether the file has all that a run needs, except perhaps a counter."""
        return self.has_model and self.has_optimizer

    @property
    def is_save(self) -> bool:
        """Whether a training run saved the file: a model together with an optimizer or a counter."""
        return self.has_model and (self.has_optimizer or self.step is not None or self.epoch is not None)

    @property
    def content(self) -> Content:
        """The contents, as far as they matter for a resume."""
        if self.is_full:
            return Content.FULL
        return Content.WEIGHTS_ONLY if self.has_tensors and not self.may_have_optimizer else Content.UNKNOWN


def record_of(values: object) -> Record:
    """Return the facts in a file's plain values; empty unless they are a dictionary other than an optimizer's state."""
    if not isinstance(values, dict) or _is_optimizer(values):
        return Record()
    has_model = has_optimizer = may_have_optimizer = False
    for name, value in _named_values(values):
        is_named_so = re.fullmatch(_OPTIMIZER, name) is not None
        if _is_optimizer(value) or (is_named_so and _has_tensor(value)):
            has_optimizer = True
        elif is_named_so:
            may_have_optimizer = may_have_optimizer or bool(value)
        elif isinstance(value, (dict, Made)) and re.fullmatch(_NO_MODEL, name) is None:
            has_model = has_model or _has_tensor(value)
    step, trouble = _step(values)
    return Record(
        step=step,
        step_trouble=trouble,
        epoch=_epoch(values),
        has_tensors=_has_tensor(values),
        has_model=has_model,
        has_optimizer=has_optimizer,
        may_have_optimizer=may_have_optimizer,
    )


def _named_values(values: dict[object, object]) -> Iterator[tuple[str, object]]:
    """Yield the values of a file, and those in its holders; a holder itself is not a value."""
    for name, value in values.items():
        if not isinstance(name, str):
            continue
        inner = value if isinstance(value, dict) else getattr(value, "members", None)
        if name in _HOLDERS and isinstance(inner, dict):
            yield from ((key, item) for key, item in inner.items() if isinstance(key, str))
        else:
            yield name, value


def _is_optimizer(value: object) -> bool:
    """Return whether a value is the state of an optimizer, or of several: torch's have parameter groups."""
    if isinstance(value, dict) and "param_groups" not in value:
        states = list(value.values())
    elif isinstance(value, (list, tuple)):
        states = list(value)
    else:
        states = [value]
    return bool(states) and all(_has_groups(state) for state in states)


def _has_groups(value: object) -> bool:
    groups = value_at(value, "param_groups")
    return isinstance(groups, list) and bool(groups)


def _has_tensor(value: object) -> bool:
    """Return whether a value contains a tensor, at any depth."""
    waiting = [value]
    for _ in range(_MOST_SEARCHED):
        if not waiting:
            return False
        inner = waiting.pop()
        if isinstance(inner, Tensor):
            return True
        if isinstance(inner, dict):
            waiting += inner.values()
        elif isinstance(inner, (list, tuple)):
            waiting += inner
        elif isinstance(inner, Made):
            waiting += (*inner.args, *inner.members.values())
    return False


def _places(values: dict[object, object]) -> Iterator[list[object]]:
    """Yield the places of counters, nearest first: the file itself, then its holders, then fairseq's history."""
    yield [values]
    yield [values[name] for name in _HOLDERS if name in values]
    yield [value_at(values, _UPDATES, -1)]


def _step(values: dict[object, object]) -> tuple[int | None, str | None]:
    """Return the step, or the reason why it is unknown although there is a counter."""
    for places in _places(values):
        counts: dict[str, int] = {}
        tensors: list[str] = []
        for place in places:
            for name in _STEPS:
                count = count_at(place, name)
                if count is not None:
                    counts.setdefault(name, count)
                elif isinstance(value_at(place, name), Tensor):
                    tensors.append(name)
        if _STEPS[0] in counts:
            return counts[_STEPS[0]], None
        if len(set(counts.values())) > 1:
            texts = " and ".join(f"{name} {count}" for name, count in counts.items())
            return None, f"its counters contradict each other ({texts})"
        if counts:
            return next(iter(counts.values())), None
        if tensors:
            return None, f"its {tensors[0]} is a tensor, not an integer"
    return None, None


def _epoch(values: dict[object, object]) -> int | None:
    for places in _places(values):
        for place in places:
            for name in _EPOCHS:
                epoch = count_at(place, name)
                if epoch is not None:
                    return epoch
    return None
