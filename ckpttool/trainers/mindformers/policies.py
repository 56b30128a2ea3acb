"""Names of policies in MindFormers' terms, and the settings for its rules and thresholds.

The policy `skip` is MindFormers' data skip by the global norm.

Source:
    MindFormers 1.6 to 2.1, the training wrapper and TrainingStateMonitor.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings, TrainersDetour
    from ckpttool.core.domain.data_position import SkipBatches, TrainersSkip
    from ckpttool.trainers.abilities import PolicyWords


class NanWord(str, Enum):
    """The effect of a NaN on the count of consecutive steps."""

    AS_MINDFORMERS = "as-mindformers"
    STRICT = "strict"


NAN_BY_DEFAULT = NanWord.AS_MINDFORMERS


class MindFormersWords:
    """Translation of ckpttool's advice into settings of MindFormers' config."""

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Return the settings for a detour, with batches counted from the start of the data.

        The count is never 0, which would mean 'not set'.
        """
        from ckpttool.core.domain.advice import TrainersDetour
        from ckpttool.trainers.mindformers.train_config import TRAINER

        if advice.detour is None:
            return None
        config = (("data_skip_steps", advice.detour.last_skipped), ("ignore_data_skip", False))
        return TrainersDetour(trainer=TRAINER, title="MindFormers", config=config)

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Return the setting for a skip.

        If nothing is skipped, the setting reads the data from the beginning, because a count of 0 means 'not set'.
        """
        from ckpttool.core.domain.data_position import TrainersSkip

        sinks = "as MindSpore does"
        if skip.batches:
            return TrainersSkip(setting="data_skip_steps", value=skip.batches, whole_sinks=sinks)
        remark = "data_skip_steps: 0 would mean 'unset' to MindFormers"
        return TrainersSkip(setting="ignore_data_skip", value=True, remark=remark, whole_sinks=sinks)

    @property
    def own_policy(self) -> str | None:
        """Return the name of MindFormers' data skip by the global norm."""
        return "skip"

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Return a policy's settings in MindFormers' terms, with the effect of a NaN on MindFormers' data skip."""
        values = {False: NanWord.AS_MINDFORMERS.value, True: NanWord.STRICT.value}
        return tuple(
            ("nan", values[bool(value)]) if name == "nan_counts" else (name, value) for name, value in settings
        )

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return the settings for MindFormers' data skip and health monitor.

        MindFormers requires floats. It computes norms only with `local_norm` and `use_clip_grad`, which its
        documentation mentions only in part.
        """
        from ckpttool.core.domain.advice import Threshold, ThresholdSettings
        from ckpttool.core.render.yaml_edit import yaml_float

        lines: list[str] = []
        norm, embedding = calibration.global_norm, calibration.embedding_local_norm
        if isinstance(norm, Threshold):
            lines += ["use_skip_data_by_global_norm: True", "monitor_config:", "  monitor_on: True"]
            lines.append(f"  global_norm_spike_threshold: {yaml_float(norm.value)}")
            lines.append(f"  global_norm_spike_count_threshold: {calibration.count_threshold}")
        if isinstance(embedding, Threshold):
            lines += ["use_checkpoint_health_monitor: True", "callbacks:", "  - type: CheckpointMonitor"]
            lines.append(f"    embedding_local_norm_threshold: {yaml_float(embedding.value)}")
        if lines:
            lines += ["runner_wrapper:", "  local_norm: True", "  use_clip_grad: True"]
        notes = []
        if isinstance(norm, Threshold):
            notes.append("MindFormers accepts them only as floats: 3.0 is right, 3 stops the training at its start")
        if lines:
            notes.append("only its static trainer reads them; the PyNative trainer reads no threshold")
        return ThresholdSettings(text="\n".join(lines), notes=tuple(notes))
