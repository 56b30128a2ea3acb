"""What a policy would have done over a log, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ckpttool.domain.advice import SpikeAdvice, StopAdvice
from ckpttool.domain.health_events import (
    CheckpointMark,
    EventKind,
    HealthEvent,
    HealthTimeline,
    MarkState,
    ReplayResult,
    SkippedSpan,
)
from ckpttool.domain.log_answer import LogReading, ReplayAnswer
from ckpttool.domain.metrics import NoteKind, show_local_time
from ckpttool.domain.units import counted
from ckpttool.render.answers import advice as ways
from ckpttool.render.escape import shown
from ckpttool.render.text import Indented, Pairs, stack

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_LINES = 12
"""Spans, events, marks and unreadable lines that a table shows of each; JSON has every single one."""

_MARK_STYLE = {MarkState.CLEAR: "green", MarkState.SUSPECT: "red", MarkState.UNKNOWN: "yellow"}
_TOLD_AS_SPANS = frozenset({EventKind.SKIP, EventKind.SKIP_UNCOUNTED, EventKind.OVERFLOW})
_GRAVE = frozenset({EventKind.SDC_STRIKE, EventKind.CHECKSUM_ABNORMAL})
_TOLD_AS_NOTES = frozenset({EventKind.UNDECIDED, EventKind.RESTART})


def replay_table(answer: ReplayAnswer) -> RenderableType:
    """Show what the policy would have done, what it costs, and what follows for the checkpoints."""
    result = answer.result
    parts: list[RenderableType] = [_headline(result), Text(_settings(answer), style="dim")]
    if result.steps_seen:
        parts += [Text(""), Pairs(_numbers(result))]
    parts += _listed("Skipped:", [_span(span) for span in result.spans])
    noticed = [event for event in result.events if event.kind not in _TOLD_AS_SPANS | _TOLD_AS_NOTES]
    parts += _listed("Events:", [_event(event) for event in noticed])
    parts += _timeline(answer.timeline)
    if answer.marks is not None:
        parts += _marks(answer.marks)
    if answer.advice is not None:
        parts += [Text(""), *advice_parts(answer.advice)]
    parts += _remarks(result.notes)
    return stack(*parts, *reading_parts(answer.reading))


def _headline(result: ReplayResult) -> Text:
    if result.stopped_at is not None:
        return Text(f"Training would have stopped at step {result.stopped_at}", style="bold red")
    if result.updates_lost:
        lost = counted(result.updates_lost, "update")
        return Text(f"{lost} would have been lost, and training would not have stopped", style="bold yellow")
    noticed = [event for event in result.events if event.kind not in _TOLD_AS_NOTES]
    if noticed:
        kinds: dict[str, int] = {}
        for event in noticed:
            kinds[event.kind.value] = kinds.get(event.kind.value, 0) + 1
        grave = any(event.kind in _GRAVE for event in noticed)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return Text(f"Noticed: {told}", style="bold red" if grave else "bold yellow")
    if not result.steps_seen:
        return Text("The logs show no step", style="bold yellow")
    return Text("Nothing to notice", style="bold green")


def _settings(answer: ReplayAnswer) -> str:
    values = (f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in answer.settings)
    return f"{answer.result.policy}: {', '.join(values)}"


def _numbers(result: ReplayResult) -> Iterator[ways.Row]:
    unseen = f", {result.steps_unseen} between them not shown" if result.steps_unseen else ""
    yield "steps", f"{result.first_step} to {result.last_step}: {result.steps_seen} shown{unseen}"
    yield "updates lost", str(result.updates_lost)
    if result.updates_lost and result.learning_rate_index is not None:
        behind = (result.last_step or 0) - result.learning_rate_index
        yield "learning rate", f"at index {result.learning_rate_index}, {behind} behind the data"


def _span(span: SkippedSpan) -> Text:
    steps = f"step {span.first}" if span.first == span.last else f"steps {span.first} to {span.last}"
    peak = "" if span.peak is None else f", up to norm {span.peak:g}"
    return Text(f"{steps}: {counted(span.updates, 'update')}{peak}")


def _event(event: HealthEvent) -> Text:
    where = []
    if event.time is not None:
        where.append(show_local_time(event.time))
    if event.step is not None:
        where.append(f"step {event.step}")
    if event.rank is not None:
        where.append(f"rank {event.rank}")
    text = Text(", ".join(where) or "at an unknown time", style="dim")
    return text.append(f"  {event.kind.value}: {event.message}", style="")


def _timeline(line: HealthTimeline) -> list[RenderableType]:
    return _listed("Suspect stretches:", [Text(shown(interval.reason)) for interval in line.intervals])


def _marks(marks: Sequence[CheckpointMark]) -> list[RenderableType]:
    clear = [mark for mark in marks if mark.state is MarkState.CLEAR]
    lines = []
    for mark in reversed(marks):
        step = "?" if mark.step is None else str(mark.step)
        text = Text(f"{shown(mark.name)} (step {step}) ").append(mark.state.value, style=_MARK_STYLE[mark.state])
        lines.append(text.append("" if mark.state is MarkState.CLEAR else f": {shown(mark.reason)}"))
    return _listed(f"Checkpoints, {len(clear)} of {len(marks)} clear:", lines)


def advice_parts(advice: SpikeAdvice | StopAdvice) -> list[RenderableType]:
    """Show a way around a spike."""
    parts: list[RenderableType] = [Text(ways.headline(advice), style="bold"), Pairs(ways.rows(advice))]
    return parts + [Indented(Text(note, style="dim")) for note in advice.notes]


def reading_parts(reading: LogReading) -> list[RenderableType]:
    """Show where training was resumed or ended by itself, and which lines could not be read."""
    told = []
    for note in reading.notes:
        place = f"{shown(note.source)}:{note.line}" if note.line else shown(note.source)
        told.append(Text(f"{place}: {_NOTES[note.kind].format(step=note.step, before=note.previous_step)}"))
    parts = _listed("The logs themselves tell:", told)
    if not reading.problem_count:
        return parts
    lines = []
    for problem in reading.problems[:MOST_LINES]:
        line = f":{problem.line}" if problem.line else ""
        lines.append(Text(f"{shown(problem.source)}{line}: {problem.reason}"))
    title = f"{counted(reading.problem_count, 'line')} could not be read, and nothing was guessed from them:"
    more = reading.problem_count - len(lines)
    return parts + _listed(title, lines) + ([Text(f"  and {more} more", style="dim")] if more else [])


_NOTES = {
    NoteKind.REWIND: "training went back from step {before} to {step}",
    NoteKind.COUNT_STOP: "training stopped at step {step}: too many norms in a row above the threshold",
    NoteKind.NORM_STOP: "training stopped at step {step}, to repeat it: a norm above the threshold",
    NoteKind.NAN_STOP: "training stopped at step {step}: a NaN",
}


def _remarks(notes: Sequence[str]) -> list[RenderableType]:
    return [part for note in notes[:MOST_LINES] for part in (Text(""), Text(note, style="dim"))]


def _listed(title: str, lines: Sequence[Text]) -> list[RenderableType]:
    if not lines:
        return []
    parts: list[RenderableType] = [Text(""), Text(title, style="bold")]
    parts += [Indented(line) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        parts.append(Text(f"  and {len(lines) - MOST_LINES} more: --format json", style="dim"))
    return parts
