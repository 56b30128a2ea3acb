"""The health of every checkpoint, for people: the answer, the table, the curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ckpttool.domain.health import Health
from ckpttool.domain.health_events import HealthJudgement
from ckpttool.domain.log_answer import HealthAnswer, WeightNumbers
from ckpttool.render.answers.plan import NARROW, grouped_findings
from ckpttool.render.chart import WIDTH, Mark, norm_chart
from ckpttool.render.escape import shown
from ckpttool.render.text import stack, whole_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_STYLE = {Health.HEALTHY: "green", Health.UNHEALTHY: "red", Health.UNKNOWN: "dim"}
_WORTH = {Health.HEALTHY: True, Health.UNHEALTHY: False, Health.UNKNOWN: None}
_SHOWN_LOGS = 2


def health_table(answer: HealthAnswer, *, unicode: bool, width: int = WIDTH) -> RenderableType:
    """Show which checkpoints are healthy, newest first, with the curve that says so."""
    parts: list[RenderableType] = [_headline(answer), Text(_basis(answer), style="dim")]
    if answer.report.judgements:
        parts += [Text(""), _Judgements(answer)]
    parts += _notes(answer)
    if answer.weights:
        parts += [Text(""), *_weights(answer.weights)]
    chart = _chart(answer, unicode=unicode, width=width)
    if chart is not None:
        parts += [Text(""), Text(chart.rstrip("\n"), no_wrap=True, overflow="crop")]
    if answer.written:
        parts += [Text(""), Text(f"Wrote {shown(answer.health_file or '')}; the old one is beside it as .bak")]
    return stack(*parts, *grouped_findings(answer.report.findings))


def _headline(answer: HealthAnswer) -> Text:
    newest, healthy = answer.newest, answer.report.newest_healthy
    if newest is None:
        return Text(f"No checkpoint in {shown(answer.root)}", style="bold red")
    other = "no checkpoint is healthy" if healthy is None else f"the newest healthy one is {shown(healthy)}"
    name = shown(newest.name)
    match newest.health:
        case Health.HEALTHY:
            return Text(f"The newest checkpoint, {name}, is healthy", style="bold green")
        case Health.UNHEALTHY:
            return Text(f"The newest checkpoint, {name}, is unhealthy; {other}", style="bold red")
        case Health.UNKNOWN:
            return Text(f"The newest checkpoint, {name}, is of unknown health; {other}", style="bold yellow")


def _basis(answer: HealthAnswer) -> str:
    threshold = answer.report.threshold
    reading = answer.reading
    parts = []
    if threshold is None:
        parts.append("no threshold given: by the record alone")
    else:
        parts.append(f"threshold {threshold:g} (sum of squares; L2 norm {math.sqrt(threshold):.4g})")
    if reading is None:
        parts.append("no training log found: give --log")
    else:
        names = [shown(name) for name in reading.sources[:_SHOWN_LOGS]]
        more = len(reading.sources) - len(names)
        parts.append(", ".join(names) + (f" and {more} more logs" if more else ""))
    if answer.health_file is not None:
        parts.append(shown(answer.health_file))
    return "\n".join(parts)


class _Judgements:
    """One line a checkpoint, newest first; on a narrow terminal only what the answer needs."""

    def __init__(self, answer: HealthAnswer) -> None:
        self._newest_first = answer.report.judgements[::-1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("NAME")
        for header in ("STEP", "NORM") if narrow else ("STEP", "NORM", "L2"):
            table.add_column(header, justify="right", no_wrap=True)
        for header in ("HEALTH",) if narrow else ("HEALTH", "BY", "RECORDED"):
            table.add_column(header, no_wrap=True)
        for one in self._newest_first:
            table.add_row(Text(shown(one.name)), *_cells(one, narrow=narrow))
        yield whole_words(table)


def _cells(one: HealthJudgement, *, narrow: bool) -> Iterator[Text]:
    yield Text("?" if one.step is None else str(one.step))
    yield Text(_norm(one.embedding_local_norm))
    if not narrow:
        yield Text(_norm(one.l2_norm))
    yield Text(one.health.value, style=_STYLE[one.health])
    if not narrow:
        yield Text(one.source)
        yield Text(one.recorded.value, style=_STYLE[one.recorded])


def _norm(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _notes(answer: HealthAnswer) -> list[RenderableType]:
    """Say what hindered a judgement; once, where it is the same for many."""
    names: dict[str, list[str]] = {}
    for one in reversed(answer.report.judgements):
        if one.note is not None:
            names.setdefault(one.note, []).append(shown(one.name))
    parts: list[RenderableType] = [Text("")] if names else []
    for note, those in names.items():
        who = those[0] if len(those) == 1 else f"{those[0]} and {len(those) - 1} more"
        parts.append(Text(f"{who}: {note}", style="yellow"))
    return parts


def _weights(weights: tuple[WeightNumbers, ...]) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("NAME")
    for header in ("STEP", "NAN/INF", "EMBEDDING L2", "FIRST MOMENT"):
        table.add_column(header, justify="right", no_wrap=True)
    for one in reversed(weights):
        step = "?" if one.step is None else str(one.step)
        bad = f"{one.nonfinite}{'' if one.read_all else '+?'}"
        table.add_row(Text(shown(one.name)), step, bad, _norm(one.embedding_l2), _norm(one.embedding_moment))
    what = (
        "In the shards. FIRST MOMENT: sum of squares of adam_m of the embedding, a stand-in for NORM: a smoothed "
        "gradient, smaller and later, so the threshold does not apply to it."
    )
    return [Text(what), whole_words(table)]


def _chart(answer: HealthAnswer, *, unicode: bool, width: int) -> str | None:
    judged = answer.report.judgements
    marks = [Mark(step=one.step, healthy=_WORTH[one.health]) for one in judged if one.step is not None]
    if answer.points:
        title = "embedding local norm (sum of squares) over steps"
        threshold = answer.report.threshold
        return norm_chart(title, answer.points, threshold=threshold, marks=marks, unicode=unicode, width=width)
    moments = [
        (one.step, one.embedding_moment)
        for one in answer.weights
        if one.step is not None and one.embedding_moment is not None
    ]
    if not moments:
        return None
    title = "first moment of the embedding (sum of squares, a stand-in) over steps"
    return norm_chart(title, moments, marks=marks, unicode=unicode, width=width)
