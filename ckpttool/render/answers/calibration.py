"""Thresholds that fit a run: the YAML to paste, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from ckpttool.domain.advice import Calibration, Refusal, Threshold
from ckpttool.domain.log_answer import CalibrationAnswer
from ckpttool.render.answers.replay import reading_parts
from ckpttool.render.chart import WIDTH, histogram
from ckpttool.render.text import stack
from ckpttool.trainers.mindformers.settings_to_paste import yaml_float, yaml_to_paste

if TYPE_CHECKING:
    from rich.console import RenderableType


def calibration_table(answer: CalibrationAnswer, *, unicode: bool, width: int = WIDTH) -> RenderableType:
    """Show the thresholds, how they came about, and the picture."""
    calibration = answer.calibration
    yaml = yaml_to_paste(calibration)
    parts: list[RenderableType] = [_headline(yaml), Text("")]
    if yaml:
        parts += [Text(f"{yaml}\n", no_wrap=True)]
    for threshold in (calibration.global_norm, calibration.embedding_local_norm):
        parts += [Text(line) for line in _basis(threshold, calibration)]
        if isinstance(threshold, Threshold):
            picture = histogram(threshold, unicode=unicode, width=width)
            parts.append(Text(picture, no_wrap=True, overflow="crop"))
    parts += [Text(note, style="dim") for note in calibration.notes]
    return stack(*parts, *reading_parts(answer.reading))


def _headline(yaml: str) -> Text:
    if yaml:
        return Text("To merge into the training config:", style="bold green")
    return Text("No threshold can be recommended from this log", style="bold yellow")


def _basis(threshold: Threshold | Refusal, calibration: Calibration) -> Iterator[str]:
    match threshold:
        case Refusal():
            yield f"{threshold.quantity}: none, for {threshold.reason}"
        case Threshold():
            yield (
                f"{threshold.quantity}: {yaml_float(threshold.value)}, from {threshold.points} normal steps after "
                f"{calibration.warm_up} of warm-up"
            )
            yield (
                f"false skips expected: {threshold.false_alarms:.3g} per 10,000 steps, with 95 % confidence at most "
                f"{threshold.false_alarms_at_most:.3g}"
            )
            alarms = f"{threshold.alarm_share:.2%} of the steps lie at or above it"
            yield f"{alarms}; {threshold.excluded} were taken for spikes and left out"
