"""The step, the sample and the saves of a run that resumes from a save of the PyNative trainer.

Source: `Trainer._load_checkpoint` and `CheckpointCallback` of MindFormers 2.1.0, and resumed runs of the real trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.data_position import DataEffect, GoesOn, SampleSource
from ckpttool.core.domain.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.core.domain.scalars import Scalars
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

_WHY = "the trainer skips the consumed samples of the save"
_UNCHANGED = "the data set and its order are unchanged"


def begin_step(scalars: Scalars, config: PyNativeConfig | None, batch: int | None = None) -> int | None:
    """Return the step after which a run begins.

    The trainer scales this step with the batch size, in floating point.

    Args:
        scalars: The scalars of the save.
        config: The config of the run; None if unknown.
        batch: Global batch size of the run, if it differs from the config's.
    """
    if scalars.step is None:
        return None
    new = batch if config is None else batch or config.global_batch_size
    old = scalars.global_batch_size
    if not old or not new or old == new or (config is not None and config.ramp_up is not None):
        return scalars.step
    return _scaled(scalars.step, old, new)


def _scaled(step: int, old: int, new: int) -> int | None:
    try:
        return int(step * (old / new))
    except OverflowError:  # too large for a float: the trainer also stops
        return None


def samples_of(scalars: Scalars, config: PyNativeConfig | None) -> tuple[int | None, SampleSource | None]:
    """Return a save's consumed samples, and their source.

    Versions 1.9 and 2.0 do not record the samples, so they are computed.
    """
    if scalars.samples is not None:
        return scalars.samples, SampleSource.CONTENT
    if scalars.step is None:
        return None, None
    if config is not None and config.ramp_up is not None:
        return config.ramp_up.consumed_at(scalars.step), SampleSource.COMPUTED
    batch = scalars.global_batch_size or (None if config is None else config.global_batch_size)
    if not batch:
        return None, None
    return scalars.step * batch, SampleSource.COMPUTED


def data_position(scalars: Scalars, config: PyNativeConfig | None, batch: int | None = None) -> GoesOn:
    """Return the position at which the data continue.

    Args:
        scalars: The scalars of the save.
        config: The config of the run; None if unknown.
        batch: Global batch size of the run, if it differs from the config's.
    """
    samples, source = samples_of(scalars, config)
    micro_batch = None if config is None else config.micro_batch
    new = batch or (scalars.global_batch_size if config is None else config.global_batch_size)
    if samples is None:
        return GoesOn(effect=DataEffect.UNKNOWN, why="the save records neither its samples nor its batch size")
    repeated = 0 if micro_batch is None else samples % micro_batch
    position = GoesOn(
        effect=DataEffect.REPEATS if repeated else DataEffect.EXACT,
        why=_WHY if micro_batch is None else f"{_WHY}, in micro-batches of {micro_batch}: {samples // micro_batch}",
        samples=samples,
        source=source,
        batches=None if not new or (config is not None and config.ramp_up is not None) else samples // new,
        repeated=repeated,
        lost=0,
        exact_if=tuple(_conditions(samples, config)),
    )
    if config is None:
        return position
    return _within_the_epoch(position, samples, begin_step(scalars, config, batch), config, new or 1)


def _conditions(samples: int, config: PyNativeConfig | None) -> Iterator[str]:
    yield _UNCHANGED
    if config is None or (config.dataset_samples is None and config.ramp_up is None):
        yield "the run ends within the epoch of the data: each later one begins at the resume position again"
    if config is not None and config.shuffles:
        yield f"{counted(samples, 'sample')} are less than one epoch: shuffled data has another order in later ones"


def _within_the_epoch(position: GoesOn, samples: int, begin: int | None, config: PyNativeConfig, batch: int) -> GoesOn:
    """Return the position, including the samples lost at the end of each epoch if their number is known."""
    from ckpttool.core.domain.frozen import replace

    total = config.dataset_samples
    if total is None or begin is None or config.ramp_up is not None:
        return position
    micro = config.micro_batch or config.local_batch_size
    used = total // micro * micro
    if used == 0:
        return position
    offset = samples // micro * micro % used
    if offset + max(0, config.steps - begin) * batch <= used or not offset:
        return position
    why = (
        f"the data has {counted(total, 'sample')} and ends before step {config.steps}: after that each epoch begins at "
        f"sample {offset} again"
    )
    return replace(position, effect=DataEffect.LOSES, why=why, lost=offset)


def save_steps(begin: int, config: PyNativeConfig) -> range:
    """Return the steps of a run's regular saves, counted from its first step; the final save is not included."""
    if not config.enable_save or config.save_every < 1:
        return range(0)
    return range(begin + config.save_every, config.steps + 1, config.save_every)
