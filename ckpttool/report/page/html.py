"""The page for a browser: one file without scripts, fonts or requests, light or dark as the browser prefers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ckpttool import __version__
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import counted, moment_if_any
from ckpttool.core.render.escape import shown, size
from ckpttool.core.render.rank_map import rank_map
from ckpttool.report.model import Curve, TreeReport
from ckpttool.report.page import content
from ckpttool.report.page.content import Save
from ckpttool.report.page.resumed import Resumed, resumed
from ckpttool.report.page.svg import Scale, curve, round_values, strip

if TYPE_CHECKING:
    from jinja2 import Template

MOST_FINDINGS = 200
"""Maximum number of findings to list individually. Others are counted."""

MOST_SAVES = 200
"""Maximum number of checkpoints to draw, newest first. Others are counted."""

COLUMNS, COARSE = 512, 128
"""Maximum number of columns on the map, and their number if a row would have too many spans."""


def html(report: TreeReport) -> str:
    """Return a report as an HTML page."""
    saves = content.saves(report)
    drawn = rank_map([(save.checkpoint, save.findings) for save in saves[:MOST_SAVES]], columns=COLUMNS, coarse=COARSE)
    rows = [
        (save, strip(row, drawn.columns, f"{save.name}, {save.verdict}"))
        for save, row in zip(saves, drawn.rows, strict=False)
    ]
    kinds = content.kinds(report, MOST_FINDINGS)
    return _template().render(
        version=__version__,
        css=_file("page.css"),
        root=shown(report.verification.inventory.root),
        made=moment_if_any(report.made) or "",
        lead=content.lead(report),
        rows_of_map=rows,
        older=saves[MOST_SAVES:],
        map=drawn,
        ticks=list(_rank_ticks(drawn.width)) if drawn.noun == "rank" else [],
        charts=[chart for panel in report.curves if (chart := _chart(panel, report, saves)) is not None],
        notes=content.log_notes(report),
        resume=None if report.resume is None else resumed(report.resume),
        losses=None if report.resume is None else _losses(resumed(report.resume)),
        grave=[kind for kind in kinds if kind.severity > 0],
        remarks=[kind for kind in kinds if not kind.severity > 0],
        counted=counted,
        size=size,
        disk=content.disk_rows(report),
        pruning=report.pruning,
        why_not_pruned=report.why_not_pruned,
        looked=content.looked(report),
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = shown
    return environment.from_string(_file("page.html"))


def _file(name: str) -> str:
    return (files("ckpttool.report.page") / name).read_text(encoding="utf-8")


def _rank_ticks(width: int) -> Iterator[tuple[float, str]]:
    """Yield the ranks on the axis of the map, with their positions in percent. A single rank has no labels."""
    if width < 2:  # noqa: PLR2004
        return
    parts = 4 if width > 8 else 1  # noqa: PLR2004  fewer ranks need no labels
    for part in range(parts):
        rank = part * width // parts
        yield rank * 100 / width, f"{rank:,}"
    yield 100.0, f"{width - 1:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """One curve with its axes and labels."""

    title: str
    unit: str
    svg: str
    ticks: Sequence[tuple[float, str]]
    """Pairs of vertical position in percent and value."""
    steps: Sequence[tuple[float, str]]
    """Pairs of horizontal position in percent and step."""
    limit: tuple[float, str] | None
    """Vertical position in percent and value of the threshold."""
    marks: Sequence[tuple[float, str, str]]
    """The saves: horizontal position in percent, health, and name with step."""
    summary: str


_TALL = 0.09
"""Minimum distance between labels, as a share of the height. Closer labels would overlap."""


def _chart(panel: Curve, report: TreeReport, saves: Sequence[Save]) -> _Chart | None:
    limits = [] if panel.threshold is None else [panel.threshold]
    scale = Scale.over([step for step, _ in panel.points], [*(value for _, value in panel.points), *limits])
    if scale is None:
        return None
    values = dict(panel.points)
    events = report.spikes if panel.shows_spikes else ()
    spikes = [(event.step, values[event.step]) for event in events if event.step is not None and event.step in values]
    summary = _summary(panel, scale, len(spikes))
    limit = None if panel.threshold is None else (scale.y(panel.threshold), f"{panel.threshold:g}")
    ticks = [(scale.y(value), f"{value:,.10g}") for value in scale.ticks()]
    return _Chart(
        title=panel.title,
        unit=panel.unit,
        svg=curve(panel.points, scale, threshold=panel.threshold, spikes=spikes, summary=summary),
        ticks=[(at * 100, text) for at, text in ticks if limit is None or abs(at - limit[0]) > _TALL],
        steps=list(_step_ticks(scale)),
        limit=None if limit is None else (limit[0] * 100, limit[1]),
        marks=[
            (scale.x(step) * 100, save.health_tone.value, f"{save.name}, step {step:,}: {save.health}")
            for save in saves
            if (step := save.checkpoint.step) is not None and scale.first <= step <= scale.last
        ],
        summary=summary,
    )


def _losses(resume: Resumed) -> _Chart | None:
    """Draw the losses of both runs over the repeated steps."""
    losses = [*resume.before, *resume.after]
    scale = Scale.over([step for step, _ in losses], [value for _, value in losses])
    if scale is None:
        return None
    title = f"Loss over {counted(len(resume.after), 'repeated step')}"
    summary = f"{title}, {scale.first} to {scale.last}, of the first run and of the resumed run"
    return _Chart(
        title=title,
        unit="of the batch",
        svg=curve(resume.after, scale, threshold=None, spikes=(), earlier=resume.before, summary=summary),
        ticks=[(scale.y(value) * 100, f"{value:,.10g}") for value in scale.ticks()],
        steps=list(_step_ticks(scale)),
        limit=None,
        marks=(),
        summary=summary,
    )


_APART = 0.2
"""Minimum distance between labels, as a share of the width."""


def _step_ticks(scale: Scale) -> Iterator[tuple[float, str]]:
    """Yield positions in percent and labels of steps: the first step, round steps, and the last step."""
    yield 0.0, f"{scale.first:,}"
    for step in round_values(scale.first, scale.last):
        at = (step - scale.first) / (scale.last - scale.first)
        if _APART < at < 1 - _APART and step == int(step):
            yield at * 100, f"{int(step):,}"
    yield 100.0, f"{scale.last:,}"


def _summary(panel: Curve, scale: Scale, spikes: int) -> str:
    finite = [value for _, value in panel.points if value - value == 0]
    caption = f"{panel.title} over steps {scale.first} to {scale.last}, from {min(finite):.4g} to {max(finite):.4g}"
    if panel.threshold is not None:
        over = sum(not value < panel.threshold for _, value in panel.points)
        caption += f"; threshold {panel.threshold:g}, {counted(over, 'step')} at or above it"
    if panel.shows_spikes:
        caption += f"; {counted(spikes, 'spike')}"
    return caption
