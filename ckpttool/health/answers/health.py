"""The health of every checkpoint: the table, and the curve on which it is based."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import step_and_name
from ckpttool.core.formats.strict_json import number
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import HEALTH_STYLE, grouped_findings
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import NARROW, Picture, Table, line, stack
from ckpttool.health.answers.reading import reading_document
from ckpttool.health.model.answers import HealthAnswer, WeightNumbers
from ckpttool.health.model.events import HealthJudgement

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

_WORTH = {Health.HEALTHY: True, Health.UNHEALTHY: False, Health.UNKNOWN: None}
_SHOWN_LOGS = 2


def document(answer: HealthAnswer) -> Document:
    """Return `ckpttool/health/1`, every checkpoint's health, oldest first."""
    weights = {(weight.name, weight.step): weight for weight in answer.weights}
    return {
        "schema": "ckpttool/health/1",
        "root": answer.root,
        "threshold": answer.report.threshold,
        "checkpoints": [
            _judgement(judgement, weights.get((judgement.name, judgement.step)))
            for judgement in answer.report.judgements
        ],
        "newest_healthy": answer.report.newest_healthy,
        "health_file": answer.health_file,
        "written": answer.written,
        "logs": None if answer.reading is None else reading_document(answer.reading),
        "findings": [finding_document(finding) for finding in answer.report.findings],
    }


def _judgement(judgement: HealthJudgement, weights: WeightNumbers | None) -> Document:
    return {
        "name": judgement.name,
        "step": judgement.step,
        "recorded": judgement.recorded.value,
        "embedding_local_norm": number(judgement.embedding_local_norm),
        "l2_norm": number(judgement.l2_norm),
        "health": judgement.health.value,
        "source": judgement.source,
        "note": judgement.note,
        "weights": None
        if weights is None
        else {
            "nonfinite": weights.nonfinite,
            "embedding_l2": number(weights.embedding_l2),
            "embedding_first_moment": number(weights.embedding_moment),
            "read_all": weights.read_all,
        },
    }


def table(answer: HealthAnswer) -> RenderableType:
    """Show which checkpoints are healthy, newest first, with the curve that shows why."""
    parts: list[RenderableType] = [_headline(answer), line(_basis(answer), style="dim")]
    if answer.report.judgements:
        parts += [line(), _Judgements(answer)]
    parts += _notes(answer)
    if answer.weights:
        parts += [line(), *_weights(answer.weights)]
    parts += _curve(answer)
    if answer.written:
        parts += [line(), line(f"Wrote {shown(answer.health_file or '')}; the old file is next to it as .bak")]
    return stack(*parts, *grouped_findings(answer.report.findings))


def _headline(answer: HealthAnswer) -> Text:
    newest, healthy = answer.newest, answer.report.newest_healthy
    if newest is None:
        return line(f"No checkpoint in {shown(answer.root)}", style="bold red")
    steps = {judgement.name: judgement.step for judgement in answer.report.judgements}
    latest = "no checkpoint is known to be healthy"
    if healthy is not None:
        latest = f"the newest healthy one is {step_and_name(steps.get(healthy), shown(healthy))}"
    name = step_and_name(newest.step, shown(newest.name))
    match newest.health:
        case Health.HEALTHY:
            return line(f"The newest checkpoint, {name}, is healthy", style="bold green")
        case Health.UNHEALTHY:
            return line(f"The newest checkpoint, {name}, is unhealthy; {latest}", style="bold red")
        case Health.UNKNOWN:
            damaged = any(finding.severity is Severity.DAMAGE for finding in answer.report.findings)
            latest += "; files are damaged" if damaged else ""
            return line(f"The health of the newest checkpoint, {name}, is unknown; {latest}", style="bold yellow")


def _basis(answer: HealthAnswer) -> str:
    threshold = answer.report.threshold
    reading = answer.reading
    parts = []
    if threshold is None:
        parts.append("no --threshold given: only the trainer's record is used")
    else:
        parts.append(f"threshold {threshold:g} (sum of squares; L2 norm {math.sqrt(threshold):.4g})")
    if reading is None:
        parts.append("no training log found: pass --log")
    else:
        names = [shown(name) for name in reading.sources[:_SHOWN_LOGS]]
        more = len(reading.sources) - len(names)
        parts.append("log: " + ", ".join(names) + (f" and {more} more logs" if more else ""))
        if not answer.points:
            parts.append("no embedding norm in the log: its other values do not show the health")
    if answer.health_file is not None:
        parts.append(shown(answer.health_file))
    return "\n".join(parts)


class _Judgements:
    """One line per checkpoint, newest first; on a narrow terminal only the important columns."""

    def __init__(self, answer: HealthAnswer) -> None:
        self._newest_first = answer.report.judgements[::-1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW
        table = Table()
        table.add_column("NAME")
        for header in ("STEP", "NORM") if narrow else ("STEP", "NORM", "L2"):
            table.add_column(header, justify="right", no_wrap=True)
        for header in ("HEALTH",) if narrow else ("HEALTH", "BY", "RECORDED"):
            table.add_column(header, no_wrap=True)
        for judgement in self._newest_first:
            table.add_row(line(shown(judgement.name)), *_cells(judgement, narrow=narrow))
        yield table


def _cells(judgement: HealthJudgement, *, narrow: bool) -> Iterator[Text]:
    yield line("?" if judgement.step is None else str(judgement.step))
    yield line(_norm(judgement.embedding_local_norm))
    if not narrow:
        yield line(_norm(judgement.l2_norm))
    yield line(judgement.health.value, style=HEALTH_STYLE[judgement.health])
    if not narrow:
        yield line(judgement.source)
        yield line(judgement.recorded.value, style=HEALTH_STYLE[judgement.recorded])


def _norm(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _notes(answer: HealthAnswer) -> list[RenderableType]:
    """Report why checkpoints could not be judged, with each reason once even if many checkpoints share it."""
    names: dict[str, list[str]] = {}
    for judgement in reversed(answer.report.judgements):
        if judgement.note is not None:
            names.setdefault(judgement.note, []).append(shown(judgement.name))
    parts: list[RenderableType] = [line()] if names else []
    for note, those in names.items():
        subject = those[0] if len(those) == 1 else f"{those[0]} and {len(those) - 1} more"
        parts.append(line(f"{subject}: {note}", style="yellow"))
    return parts


def _weights(weights: tuple[WeightNumbers, ...]) -> list[RenderableType]:
    table = Table()
    table.add_column("NAME")
    for header in ("STEP", "NAN/INF", "EMBEDDING L2", "FIRST MOMENT"):
        table.add_column(header, justify="right", no_wrap=True)
    for numbers in reversed(weights):
        step = "?" if numbers.step is None else str(numbers.step)
        bad = f"{numbers.nonfinite}{'' if numbers.read_all else '+?'}"
        table.add_row(
            line(shown(numbers.name)), step, bad, _norm(numbers.embedding_l2), _norm(numbers.embedding_moment)
        )
    caption = (
        "Read from the shards. FIRST MOMENT is the sum of squares of the embedding's adam_m, a stand-in for NORM: a "
        "smoothed gradient, which is smaller and lags behind, so the threshold does not apply to it."
    )
    if not all(numbers.read_all for numbers in weights):
        caption += " +?: some shards could not be read, and may contain more."
    return [line(caption), table]


def _curve(answer: HealthAnswer) -> list[RenderableType]:
    """Draw the norm if the logs show it, or else the substitute from the shards."""
    title, points = "embedding local norm (sum of squares) over steps", list(answer.points)
    threshold = answer.report.threshold if points else None
    if not points:
        title = "first moment of the embedding (sum of squares, a stand-in) over steps"
        points = [
            (numbers.step, numbers.embedding_moment)
            for numbers in answer.weights
            if numbers.step is not None and numbers.embedding_moment is not None
        ]
    from ckpttool.health.answers.chart import Mark, norm_chart

    judged = answer.report.judgements
    marks = [
        Mark(step=judgement.step, healthy=_WORTH[judgement.health])
        for judgement in judged
        if judgement.step is not None
    ]
    picture = Picture(partial(norm_chart, title, points, lines=[] if threshold is None else [threshold], marks=marks))
    return [line(), picture] if points else []
