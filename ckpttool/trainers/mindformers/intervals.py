"""How often MindFormers logs and saves, by its config.

Source:
    MindFormers 1.6 to 2.1: `MFLossMonitor` (it prints at the first end of a step, or of a data sink, that is at least
    `per_print_times` steps after the last one), `CheckpointMonitor`, and `build_callback` (no other callback logs the
    loss); the `checkpoint` section of 1.9. The PyNative trainer logs every step.
"""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.settings import RunConfig, StepIntervals
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.mindformers.train_config import ConfigView, TrainConfig


def intervals(config: RunConfig | None, storage: Storage, checkpoint: Checkpoint | None) -> StepIntervals | None:
    """Return how often a run logs and saves. Saves do not record it."""
    del storage, checkpoint
    if not isinstance(config, TrainConfig) or config.sinks_all or (config.sink_mode and config.sink_size is None):
        return None
    view = ConfigView(config.settings)
    logged, saved = _logged(view), _saved(view, has_section=config.has_checkpoint_section)
    if logged < 1 or saved < 1:
        return None
    sink = config.sink_size or 1
    return StepIntervals(logged=-(-logged // sink) * sink, saved=-(-saved // sink) * sink, path=config.path)


def save_interval(config: RunConfig) -> int | None:
    """Return the steps between two saves, or None if unknown; the logs do not matter."""
    if not isinstance(config, TrainConfig) or config.sinks_all or (config.sink_mode and config.sink_size is None):
        return None
    saved, sink = _saved(ConfigView(config.settings), has_section=config.has_checkpoint_section), config.sink_size or 1
    return None if saved < 1 else -(-saved // sink) * sink


def _logged(view: ConfigView) -> int:
    """Return the steps between two logged losses, or 0 if unknown."""
    loggers = view.callbacks("MFLossMonitor")
    return view.count(f"{loggers[0]}.per_print_times") if len(loggers) == 1 else 0


def _saved(view: ConfigView, *, has_section: bool) -> int:
    """Return the steps between two saves, or 0 if unknown."""
    savers = view.callbacks("CheckpointMonitor")
    if has_section and not savers:
        return view.count("checkpoint.save_interleaved_steps", 0)
    if has_section or len(savers) != 1 or view.count(f"{savers[0]}.save_checkpoint_seconds", 0):
        return 0
    return view.count(f"{savers[0]}.save_checkpoint_steps")
