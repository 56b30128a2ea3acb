"""Thresholds that fit a run, as YAML to paste, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.advice import Calibration, Refusal, Threshold
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Picture, line, stack
from ckpttool.core.render.yaml_edit import yaml_float
from ckpttool.health.answers.reading import reading_document, reading_parts
from ckpttool.health.model.answers import CalibrationAnswer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def document(answer: CalibrationAnswer) -> Document:
    """Return `ckpttool/calibration/1`, the thresholds that fit a run."""
    calibration: Calibration = answer.calibration
    return {
        "schema": "ckpttool/calibration/1",
        "logs": reading_document(answer.reading),
        "warm_up": calibration.warm_up,
        "global_norm_spike_threshold": _threshold(calibration.global_norm),
        "global_norm_spike_count_threshold": calibration.count_threshold,
        "longest_run": calibration.longest_run,
        "embedding_local_norm_threshold": _threshold(calibration.embedding_local_norm),
        "notes": [*calibration.notes, *answer.settings.notes],
        "yaml": answer.settings.text or None,
    }


def _threshold(threshold: Threshold | Refusal) -> Document:
    match threshold:
        case Refusal():
            return {"value": None, "points": threshold.points, "needed": threshold.needed, "reason": threshold.reason}
        case Threshold():
            return {
                "value": threshold.value,
                "points": threshold.points,
                "median": threshold.median,
                "spread": threshold.spread,
                "highest_normal": threshold.highest_normal,
                "excluded": threshold.excluded,
                "false_skips_per_10000": threshold.false_alarms,
                "false_skips_per_10000_at_most": threshold.false_alarms_at_most,
                "alarm_share": threshold.alarm_share,
                "bins": [
                    {"low": share_bin.low, "high": share_bin.high, "count": share_bin.count}
                    for share_bin in threshold.bins
                ],
            }


def table(answer: CalibrationAnswer) -> RenderableType:
    """Show the thresholds, how they were derived, and the chart."""
    from ckpttool.health.answers.chart import histogram

    calibration = answer.calibration
    yaml = answer.settings.text
    parts: list[RenderableType] = [_headline(calibration, yaml), line()]
    if yaml:
        parts += [line(f"{yaml}\n", no_wrap=True)]
    for threshold in (calibration.global_norm, calibration.embedding_local_norm):
        parts += [line(basis) for basis in _basis(threshold, calibration)]
        if isinstance(threshold, Threshold):
            parts += [Picture(partial(histogram, threshold)), line()]
    parts += [line(note, style="dim") for note in (*calibration.notes, *answer.settings.notes)]
    return stack(*parts, *reading_parts(answer.reading))


def _headline(calibration: Calibration, yaml: str) -> Text:
    if yaml:
        return line("To merge into the training config:", style="bold green")
    if any(isinstance(norm, Threshold) for norm in (calibration.global_norm, calibration.embedding_local_norm)):
        return line("Thresholds without a setting for them in the training config", style="bold green")
    return line("No threshold can be recommended from this log", style="bold yellow")


def _basis(threshold: Threshold | Refusal, calibration: Calibration) -> Iterator[str]:
    match threshold:
        case Refusal():
            yield f"{threshold.quantity}: none ({threshold.reason})"
        case Threshold():
            yield (
                f"{threshold.quantity}: {yaml_float(threshold.value)}, from {threshold.points} normal steps after "
                f"{calibration.warm_up} of warm-up"
            )
            yield (
                f"false skips expected: {threshold.false_alarms:.3g} per 10,000 steps, with 95 % confidence at most "
                f"{threshold.false_alarms_at_most:.3g}"
            )
            alarms = f"{threshold.alarm_share:.2%} of the steps are at or above it"
            yield f"{alarms}; {threshold.excluded} were treated as spikes and excluded"
