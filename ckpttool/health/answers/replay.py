"""The answer of `log replay`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.metrics import LocalTime, show_local_time
from ckpttool.core.domain.units import counted, step_and_name
from ckpttool.core.formats.strict_json import number
from ckpttool.core.render.answers.advice import Row, advice_document, advice_parts
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Pairs, line, stack
from ckpttool.health.answers.reading import MOST_LINES, listed, reading_document, reading_parts
from ckpttool.health.model.answers import ReplayAnswer
from ckpttool.health.model.events import (
    LOSES_UPDATE,
    CheckpointMark,
    EventKind,
    HealthEvent,
    HealthTimeline,
    MarkState,
    ReplayResult,
    SkippedSpan,
)
from ckpttool.health.read.timeline_json import SCHEMA, judged_document, timeline_document

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_MARK_STYLE = {MarkState.CLEAR: "green", MarkState.SUSPECT: "red", MarkState.UNKNOWN: "yellow"}
_GRAVE = frozenset({EventKind.SDC_STRIKE, EventKind.CHECKSUM_ABNORMAL})
_TOLD_AS_NOTES = frozenset({EventKind.UNDECIDED, EventKind.RESTART})


def document(answer: ReplayAnswer) -> Document:
    """Return `ckpttool/replay/1`, which `resolve --spikes-from` reads."""
    result = answer.result
    document: dict[str, Document] = {
        "schema": SCHEMA,
        "policy": result.policy,
        "settings": {name: number(value) if isinstance(value, float) else value for name, value in answer.settings},
        "logs": reading_document(answer.reading),
        "first_step": result.first_step,
        "last_step": result.last_step,
        "steps_seen": result.steps_seen,
        "steps_unseen": result.steps_unseen,
        "stopped_at": result.stopped_at,
        "updates_lost": result.updates_lost,
        "learning_rate_index": result.learning_rate_index,
        "spans": [_span_document(span) for span in result.spans],
        "events": [_event_document(event) for event in result.events],
        "notes": list(result.notes),
        "judged": judged_document(result.judged),
        "timeline": timeline_document(answer.timeline),
    }
    if answer.marks is not None:
        document["checkpoints"] = [_mark(mark) for mark in answer.marks]
    if answer.advice is not None:
        document["advice"] = advice_document(answer.advice)
    return document


def _span_document(span: SkippedSpan) -> Document:
    return {"first": span.first, "last": span.last, "updates": span.updates, "peak": number(span.peak)}


def _event_document(event: HealthEvent) -> Document:
    return {
        "kind": event.kind.value,
        "step": event.step,
        "time": _time(event.time),
        "rank": event.rank,
        "value": number(event.value),
        "limit": number(event.limit),
        "count": event.count,
        "since_step": event.since_step,
        "since_time": _time(event.since_time),
        "message": event.message,
    }


def _mark(mark: CheckpointMark) -> Document:
    return {"name": mark.name, "step": mark.step, "state": mark.state.value, "reason": mark.reason}


def _time(time: LocalTime | None) -> str | None:
    return None if time is None else show_local_time(time)


def table(answer: ReplayAnswer) -> RenderableType:
    """Show the decisions of the policy, their cost, and the affected checkpoints."""
    result = answer.result
    parts: list[RenderableType] = [*_headlines(result), line(_settings(answer), style="dim")]
    if result.steps_seen:
        parts += [line(), Pairs(_numbers(result))]
    parts += listed("Skipped:", [_span(span) for span in result.spans])
    noticed = [event for event in result.events if event.kind not in LOSES_UPDATE | _TOLD_AS_NOTES]
    parts += listed("Events:", [_event(event) for event in noticed])
    parts += _timeline(answer.timeline)
    if answer.marks is not None:
        parts += _marks(answer.marks)
    if answer.advice is not None:
        parts += [line(), *advice_parts(answer.advice)]
    parts += _remarks(result.notes)
    return stack(*parts, *reading_parts(answer.reading))


def _headlines(result: ReplayResult) -> list[Text]:
    """Summarize the result, and report if no step was judged, which is the reason for exit code 14."""
    summary = _result_text(result)
    headlines = [] if summary is None else [summary]
    if result.steps_seen and result.judged is not None and result.judged.first is None:
        headlines.append(line(f"Not judged: {result.judged.why}", style="bold yellow"))
    return headlines or [line("Nothing noticed", style="bold green")]


def _result_text(result: ReplayResult) -> Text | None:
    if result.stopped_at is not None:
        return line(f"Training would have stopped at step {result.stopped_at}", style="bold red")
    if result.updates_lost:
        lost = counted(result.updates_lost, "update")
        return line(f"{lost} would have been lost; training would not have stopped", style="bold yellow")
    noticed = [event for event in result.events if event.kind not in _TOLD_AS_NOTES]
    if noticed:
        kinds: dict[str, int] = {}
        for event in noticed:
            kinds[event.kind.value] = kinds.get(event.kind.value, 0) + 1
        grave = any(event.kind in _GRAVE for event in noticed)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return line(f"Noticed: {counts}", style="bold red" if grave else "bold yellow")
    if not result.steps_seen:
        return line("The logs contain no steps", style="bold yellow")
    return None


def _settings(answer: ReplayAnswer) -> str:
    values = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in answer.settings)
    return f"{answer.result.policy}: {', '.join(values)}"


def _numbers(result: ReplayResult) -> Iterator[Row]:
    unseen = f", {result.steps_unseen} between them not logged" if result.steps_unseen else ""
    yield "steps", f"{result.first_step} to {result.last_step}: {result.steps_seen} logged{unseen}"
    yield "updates lost", str(result.updates_lost)
    if result.updates_lost and result.learning_rate_index is not None:
        lag = (result.last_step or 0) - result.learning_rate_index
        yield "learning rate", f"at index {result.learning_rate_index}, {lag} behind the data"


def _span(span: SkippedSpan) -> Text:
    steps = f"step {span.first}" if span.first == span.last else f"steps {span.first} to {span.last}"
    peak = "" if span.peak is None else f", up to norm {span.peak:g}"
    return line(f"{steps}: {counted(span.updates, 'update')}{peak}")


def _event(event: HealthEvent) -> Text:
    where = []
    if event.time is not None:
        where.append(show_local_time(event.time))
    if event.step is not None:
        where.append(f"step {event.step}")
    if event.rank is not None:
        where.append(f"rank {event.rank}")
    text = line(", ".join(where) or "at an unknown time", style="dim")
    return text.append(f"  {event.kind.value}: {event.message}", style="")


def _timeline(timeline: HealthTimeline) -> list[RenderableType]:
    return listed("Suspect intervals:", [line(shown(interval.reason)) for interval in timeline.intervals])


def _marks(marks: Sequence[CheckpointMark]) -> list[RenderableType]:
    clear = [mark for mark in marks if mark.state is MarkState.CLEAR]
    lines = []
    for mark in reversed(marks):
        text = line(f"{step_and_name(mark.step, shown(mark.name))} ").append(
            mark.state.value, style=_MARK_STYLE[mark.state]
        )
        lines.append(text.append("" if mark.state is MarkState.CLEAR else f": {shown(mark.reason)}"))
    return listed(f"Checkpoints, {len(clear)} of {len(marks)} clear:", lines)


def _remarks(notes: Sequence[str]) -> list[RenderableType]:
    return [part for note in notes[:MOST_LINES] for part in (line(), line(note, style="dim"))]
