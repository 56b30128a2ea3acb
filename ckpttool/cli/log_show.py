"""Each answer about training logs, in the format that was asked for."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from ckpttool.cli import output
from ckpttool.cli.options import Format
from ckpttool.render.answers import log_documents as documents
from ckpttool.render.json import dumps

if TYPE_CHECKING:
    from ckpttool.domain.log_answer import AsdAnswer, CalibrationAnswer, HealthAnswer, ReplayAnswer

WIDEST = 100
"""Columns of a picture: wider than that no curve says more."""


def _unicode() -> bool:
    """Tell whether stdout shows more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size().columns)


def health(answer: HealthAnswer, fmt: Format) -> None:
    """Show which checkpoints are healthy."""
    match fmt:
        case Format.JSON:
            output.result(dumps(documents.health_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers.health import health_table

            output.table(health_table(answer, unicode=_unicode(), width=_width()))


def replay(answer: ReplayAnswer, fmt: Format) -> None:
    """Show what a policy would have done."""
    match fmt:
        case Format.JSON:
            output.result(dumps(documents.replay_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers.replay import replay_table

            output.table(replay_table(answer))


def calibration(answer: CalibrationAnswer, fmt: Format) -> None:
    """Show thresholds that fit a run."""
    match fmt:
        case Format.JSON:
            output.result(dumps(documents.calibration_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers.calibration import calibration_table

            output.table(calibration_table(answer, unicode=_unicode(), width=_width()))


def asd_check(answer: AsdAnswer, fmt: Format) -> None:
    """Show what a parser makes of a configuration."""
    match fmt:
        case Format.JSON:
            output.result(dumps(documents.asd_document(answer)))
        case Format.TABLE:
            from ckpttool.render.answers.asd import asd_table

            output.table(asd_table(answer))


def asd_emit(answer: AsdAnswer, fmt: Format) -> None:
    """Show a configuration alone on its line, so that it can be pasted; what does not fit goes to stderr."""
    match fmt:
        case Format.JSON:
            output.result(dumps(documents.asd_document(answer)))
        case Format.TABLE:
            for finding in answer.findings:
                output.note(finding.message)
            output.result(f"{answer.variable}={answer.text}")
