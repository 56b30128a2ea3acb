"""Thresholds as settings of MindFormers, spelt so that it reads them as they are meant."""

from __future__ import annotations

from ckpttool.domain.advice import Calibration, Threshold, ThresholdSettings
from ckpttool.render.yaml_edit import yaml_float


def threshold_settings(calibration: Calibration) -> ThresholdSettings:
    """Return the settings for a MindFormers config.

    MindFormers demands floats, and norms at all only with `local_norm` and `use_clip_grad`, which its documentation
    leaves out in part.
    """
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
    note = "MindFormers takes these thresholds only as floats: 3.0 is right, 3 stops the training at its start"
    return ThresholdSettings(text="\n".join(lines), notes=(note,) if isinstance(norm, Threshold) else ())
