"""Settings that make Megatron-LM load exactly one save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.load_settings import LoadSettings, Place, SettingValue, TrainerSetting
from ckpttool.core.domain.shard import ShardRole
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.megatron import BRIDGE_TRACKER, RELEASE, TRAIN_STATE, TRAINER, iteration_of

if TYPE_CHECKING:
    from ckpttool.core.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings, TrainersDetour
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.data_position import SkipBatches, TrainersSkip
    from ckpttool.trainers.abilities import PolicyWords


def settings(inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
    """Return settings for the folder and the iteration, which make Megatron-LM stop if the iteration is missing.

    A tracker that names `release` takes precedence over `--ckpt-step`. In the legacy layout the distributed optimizer's
    state is read from the save that the tracker names, regardless of `--ckpt-step`, so in that layout the tracker must
    name this save.

    Source: `_load_base_checkpoint` and `load_checkpoint` of `megatron/training/checkpointing.py`, core_r0.16.0.
    """
    chosen_settings: tuple[TrainerSetting, ...]
    step = iteration_of(checkpoint.name)
    if step == 0:
        return Refusal(
            why="is from iteration 0: --ckpt-step 0 counts as not given, and a tracker that says 0 is refused"
        )
    if step is not None and by_bridge(checkpoint):
        root = replace(_setting("argument:checkpoint.load", inventory.root), is_path=True)
        chosen_settings = (root, _setting("argument:checkpoint.ckpt_step", step))
        return LoadSettings(trainer=TRAINER.name, path=inventory.root, settings=chosen_settings, remarks=(_OF_BRIDGE,))
    tracker = _setting(f"file:{TRACKER}", RELEASE if step is None else str(step))
    load = replace(_setting("argument:--load", inventory.root), is_path=True)
    stop = _setting("argument:--exit-on-missing-checkpoint", True)  # noqa: FBT003  its value
    if step is None:
        chosen_settings = (tracker, load, stop)
    elif mixes_saves(checkpoint):
        chosen_settings = (tracker, load, _setting("argument:--ckpt-step", step), stop)
    else:
        chosen_settings = (load, _setting("argument:--ckpt-step", step), replace(tracker, is_alternative=True), stop)
    return LoadSettings(trainer=TRAINER.name, path=inventory.root, settings=chosen_settings, remarks=(_LOG,))


_LOG = "Check the log for the line with the iteration: if loading fails, the training may end with exit code 0."
"""Advice for core 0.16 and earlier, in which a run may end with 0 even with --exit-on-missing-checkpoint."""


_OF_BRIDGE = f"Megatron-Bridge follows {BRIDGE_TRACKER} if no step is given; the tracker of Megatron-LM has no effect."


def by_bridge(checkpoint: Checkpoint) -> bool:
    """Return whether Megatron-Bridge, or NeMo based on it, wrote a save: their settings have different names."""
    return any(shard.path.endswith(f"/{TRAIN_STATE}") for shard in checkpoint.shards)


def mixes_saves(checkpoint: Checkpoint) -> bool:
    """Return whether the tracker selects some parts of a save, while `--ckpt-step` selects the others."""
    return any(shard.role is ShardRole.OPTIMIZER for shard in checkpoint.shards)


def _setting(place: str, value: SettingValue) -> TrainerSetting:
    return TrainerSetting(place=Place.parsed(place), value=value)


class MegatronWords:
    """Translation of ckpttool's advice.

    Megatron-LM has settings only for skipping data.
    """

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Format Megatron-LM's option for a shell.

        The option lists every single iteration. After a stop, it can train the good batches before the bad ones, which
        a single number of steps cannot.
        """
        from ckpttool.core.domain.advice import StopAdvice, TrainersDetour

        detour = advice.detour
        if detour is None:
            return None
        first = detour.first_skipped + (advice.good_batches_lost if isinstance(advice, StopAdvice) else 0)
        argument = f"--iterations-to-skip $(seq {first} {detour.last_skipped})" if detour.skip_batches else None
        return TrainersDetour(trainer=TRAINER.name, title=TRAINER.title, argument=argument)

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return None, because Megatron-LM has no known settings for thresholds."""
        return None

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Return None, because Megatron-LM itself counts the batches to skip."""
        return None

    @property
    def own_policy(self) -> str | None:
        """Return None, because Megatron-LM never drops an update because of its norm."""
        return None

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Return the settings unchanged, because Megatron-LM has no policy of its own."""
        return settings
