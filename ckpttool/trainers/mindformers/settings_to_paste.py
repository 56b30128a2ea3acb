"""Settings of MindFormers, spelt so that it reads them as they are meant."""

from __future__ import annotations

from ckpttool.domain.advice import Calibration, Threshold


def yaml_to_paste(calibration: Calibration) -> str:
    """Return the settings for a MindFormers config; empty where no threshold is recommended.

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
    return "\n".join(lines)


def yaml_float(value: float) -> str:
    """Spell a number so that YAML 1.1 reads a float: `1e-05` is text to it, and `3` a whole number."""
    mantissa, exponent, power = repr(float(value)).partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power
