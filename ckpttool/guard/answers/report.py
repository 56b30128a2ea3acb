"""Output for the report on a guarded training run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.units import Rank, Step, counted, on_ranks
from ckpttool.core.formats.strict_json import number
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import Indented, Table, line, stack
from ckpttool.guard.answers.nan_captures import row_document
from ckpttool.guard.model.attribution import Attribution
from ckpttool.guard.model.report import CaptureTold, DroppedUpdate, FaultTold, GuardReport, RankReport
from ckpttool.health.answers.reading import listed, reading_document, reading_parts

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_MOST_ROWS = 12

_COLUMNS = (
    ("STEPS", "steps"),
    ("APPLIED", "applied"),
    ("DROPPED", "dropped"),
    ("OVERFLOWS", "overflows"),
    ("CAPTURES", "captures"),
    ("STRIKES", "strikes"),
    ("SAVES", "saves"),
    ("ERRORS", "guard_errors"),
)
"""Column headings, each with a field of a rank's report."""

_GAUGES = (
    ("last_step", "The last step that the rank reported."),
    ("overhead", "The guard's mean share of a step."),
)
_COUNTERS = (
    ("starts", "Processes that wrote events."),
    ("steps", "Updates that the guard decided on."),
    ("applied", "Updates that reached the weights."),
    ("dropped", "Updates that were dropped."),
    ("overflows", "Updates whose overflow a loss scaler caused."),
    ("captures", "Steps that were captured for replay."),
    ("capture_failures", "Captures that failed."),
    ("strikes", "Strikes of the feature value detection."),
    ("abnormal_products", "Wrong matrix products."),
    ("disagreements", "Times that replicas were found to differ."),
    ("saves", "Checkpoints of which the rank wrote its part."),
    ("failed_saves", "Checkpoints of which the rank could not write its part."),
    ("guard_errors", "Failures of parts of the guard."),
    ("lost_lines", "Events that could not be written."),
)


def document(answer: GuardReport) -> Document:
    """Return the document of the schema `ckpttool/guard-report/1`, with the events by rank and the next action."""
    return {
        "schema": "ckpttool/guard-report/1",
        "events": reading_document(answer.reading),
        "world_size": answer.world_size,
        "watching": answer.is_watching,
        "switched_on": list(answer.switched_on),
        "steps": answer.steps,
        "applied": answer.applied,
        "dropped": answer.dropped,
        "overflows": answer.overflows,
        "stopped_at": answer.stopped_at,
        "drops": [
            {
                "step": update.step,
                "kind": update.kind,
                "norm": number(update.norm),
                "ranks": list(update.ranks),
                "message": update.message,
            }
            for update in answer.drops
        ],
        "captures": [
            {
                "step": capture.step,
                "path": capture.path,
                "verdict": capture.verdict,
                "culprits": list(capture.culprits),
            }
            for capture in answer.captures
        ],
        "in_a_row": [row_document(row) for row in answer.in_a_row],
        "strikes": [_fault_document(fault) for fault in answer.strikes],
        "abnormal_products": [_fault_document(fault) for fault in answer.abnormal_products],
        "disagreements": [_fault_document(fault) for fault in answer.disagreements],
        "attributions": [
            {
                "step": attribution.step,
                "rank": attribution.rank,
                "host": attribution.host,
                "device": attribution.device,
                "suspicion": attribution.suspicion,
                "cause": attribution.cause.value,
                "why": attribution.why,
            }
            for attribution in answer.attributions
        ],
        "causes": [
            {
                "host": causes.host,
                "rank": causes.rank,
                "device": causes.device,
                "transient": causes.transient,
                "persistent": causes.persistent,
                "data_or_model": causes.data_or_model,
                "unknown": causes.unknown,
                "advice": causes.advice,
            }
            for causes in answer.causes
        ],
        "alarms": list(answer.alarms),
        "starts": answer.starts,
        "forgotten": list(answer.forgotten),
        "saves": answer.saves,
        "failed_saves": answer.failed_saves,
        "last_save_failed": answer.last_save_failed,
        "save_error": None if answer.worst_saves is None else answer.worst_saves.save_error,
        "guard_errors": answer.guard_errors,
        "errors": list(answer.errors),
        "overhead": number(answer.overhead),
        "ranks": [_rank_document(rank) for rank in answer.ranks],
        "next": [_command(command) for command in answer.next],
    }


def _fault_document(fault: FaultTold) -> Document:
    return {"step": fault.step, "rank": fault.rank, "since_step": fault.since_step, "message": fault.message}


def _rank_document(rank: RankReport) -> Document:
    record: dict[str, Document] = {"rank": rank.rank, "host": rank.host, "first_step": rank.first_step}
    record |= {field: getattr(rank, field) for field in ("last_step", *(field for field, _ in _COUNTERS))}
    return {**record, "switched_off": list(rank.switched_off), "overhead": number(rank.overhead)}


def _command(command: Sequence[str]) -> str:
    return " ".join(quote(argument.replace("\0", "")) for argument in command)


def table(answer: GuardReport) -> RenderableType:
    """Return a table of the events by rank and the next action."""
    parts: list[RenderableType] = [_headline(answer)]
    if answer.worst_saves is not None:
        parts.append(_failed_saves(answer.worst_saves))
    if answer.ranks:
        parts += [line(), *_by_rank(answer)]
    parts += listed("Would have been dropped:" if answer.is_watching else "Dropped:", list(_drops(answer)))
    parts += listed("Captured for replay:", list(_captures(answer)))
    parts += listed("Strikes:", list(map(_fault, answer.strikes)))
    parts += listed("Wrong matrix products:", list(map(_fault, answer.abnormal_products)))
    parts += listed("Replicas disagree:", list(map(_fault, answer.disagreements)))
    parts += _causes(answer)
    parts += listed("Alarms:", [line(shown(text)) for text in answer.alarms])
    parts += listed("State lost at a restart:", [line(shown(text)) for text in answer.forgotten])
    parts += listed("Failures of the guard itself (the training continued):", list(_failures(answer)))
    if answer.next:
        parts += [line(), line("Next:", style="bold")]
        parts += [Indented(line(_command(command), no_wrap=True)) for command in answer.next]
    return stack(*parts, *reading_parts(answer.reading))


def _headline(answer: GuardReport) -> Text:
    if not answer.ranks:
        return line("The files record no guarded training", style="bold yellow")
    if answer.stopped_at is not None:
        text = f"The training stopped at step {answer.stopped_at}: too many updates in a row were dropped"
        return line(text, style="bold red")
    grave = [
        counted(len(count), noun, plural)
        for count, noun, plural in (
            (answer.abnormal_products, "wrong matrix product", None),
            (answer.strikes, "strike", None),
            (answer.disagreements, "disagreement of replicas", "disagreements of replicas"),
            (answer.captures, "capture", None),
        )
        if count
    ]
    if len(answer.in_a_row) == 1 and answer.in_a_row[0].count == len(answer.captures):
        grave[-1] += " in a row"
    grave += [counted(answer.failed_saves, "failed save")] if answer.last_save_failed else []
    updates = counted(answer.steps, "update")
    if grave:
        return line(f"Needs attention: {', '.join(grave)} in {updates}", style="bold red")
    if answer.dropped:
        return line(f"{answer.dropped} of {updates} were dropped; the training continued", style="bold yellow")
    if answer.is_watching:
        return line(f"{updates}, all applied: the guard only watched", style="bold yellow")
    return line(f"{updates}, none dropped", style="bold green")


def _failed_saves(rank: RankReport) -> Text:
    text = f"{rank.failed_saves} of {counted(rank.saves + rank.failed_saves, 'save')} failed, the last at "
    text += shown(rank.save_error or "")
    if rank.last_save_failed:
        return line(text, style="bold red")
    return line(f"{text}; a later one was written", style="bold yellow")


def _by_rank(answer: GuardReport) -> list[RenderableType]:
    """Return a table of the numbers, with equal ranks grouped."""
    rows: dict[tuple[object, ...], list[Rank]] = {}
    for rank in answer.ranks:
        rows.setdefault((*(getattr(rank, field) for _, field in _COLUMNS), rank.last_step), []).append(rank.rank)
    # A column of zeros has no information; the first three are always shown.
    used_columns = [place for place, _ in enumerate(_COLUMNS) if place < 3 or any(row[place] for row in rows)]  # noqa: PLR2004
    drawn = Table()
    drawn.add_column("RANKS", no_wrap=True)
    for place in used_columns:
        drawn.add_column(_COLUMNS[place][0], justify="right", no_wrap=True)
    drawn.add_column("LAST STEP", justify="right", no_wrap=True)
    for row, ranks in list(rows.items())[:_MOST_ROWS]:
        last = "" if row[-1] is None else str(row[-1])
        drawn.add_row(on_ranks(ranks).partition(" ")[2], *(str(row[place]) for place in used_columns), last)
    parts: list[RenderableType] = [drawn]
    if len(rows) > _MOST_ROWS:
        parts.append(line(f"and {len(rows) - _MOST_ROWS} more: --format json", style="dim"))
    missing = (answer.world_size or 0) - len(answer.ranks)
    if missing > 0:
        parts.append(line(f"no file from {counted(missing, 'rank')} of {answer.world_size}", style="dim"))
    if answer.starts > 1:
        parts.append(line(f"started {answer.starts} times; repeated steps are counted again", style="dim"))
    if answer.switched_on not in {("code",), ()}:
        parts.append(line(f"switched on by {' and '.join(map(shown, answer.switched_on))}", style="dim"))
    if answer.overhead is not None:
        parts.append(line(f"the guard took {answer.overhead:.2%} of a step", style="dim"))
    return parts


def _at(step: Step) -> Text:
    return line().append(f"step {step}  ", style="dim")


def _drops(answer: GuardReport) -> Iterator[Text]:
    """Yield one line per dropped update, or per series of updates dropped for the same reason."""
    rows: list[list[DroppedUpdate]] = []
    for update in answer.drops:
        if rows and _continues(rows[-1][-1], update):
            rows[-1].append(update)
        else:
            rows.append([update])
    for row in rows:
        text = _drop(row[0])
        yield text if len(row) == 1 else text.append(f"; {len(row)} in a row, to step {row[-1].step}")


def _continues(before: DroppedUpdate, update: DroppedUpdate) -> bool:
    is_next = update.step == before.step + 1
    return is_next and (update.kind, update.ranks, update.message) == (before.kind, before.ranks, before.message)


def _drop(update: DroppedUpdate) -> Text:
    on_which = f" ({on_ranks(update.ranks)})" if update.ranks else ""
    return _at(update.step).append(f"{update.kind}{on_which}: {shown(update.message)}")


def _captures(answer: GuardReport) -> Iterator[Text]:
    """Yield one line per capture, or per series of captures."""
    first = {row.first: row for row in answer.in_a_row}
    later = {step for row in answer.in_a_row for step in row.later}
    for capture in answer.captures:
        row = first.get(capture.step)
        if row is not None:
            text = f"; {row.count} in a row on the same weights, to step {row.last}: most likely one cause"
            yield _capture(capture).append(text)
        elif capture.step not in later:
            yield _capture(capture)


def _capture(capture: CaptureTold) -> Text:
    on_which = f" ({on_ranks(capture.culprits)})" if capture.culprits else ""
    verdict = "" if capture.verdict is None else f": {capture.verdict}, finite when recomputed"
    return _at(capture.step).append(f"{shown(capture.path)}{on_which}{verdict}")


def _fault(fault: FaultTold) -> Text:
    on_which = "" if fault.rank is None else f"rank {fault.rank}: "
    since = "" if fault.since_step is None else f", since step {fault.since_step}"
    return _at(fault.step).append(f"{on_which}{shown(fault.message)}{since}")


def _causes(answer: GuardReport) -> list[RenderableType]:
    """Return the cause of each suspicious step by host and rank, and the remedy."""
    if not answer.causes:
        return []
    drawn = Table()
    for head in ("HOST", "RANK"):
        drawn.add_column(head, no_wrap=True)
    for head in ("TRANSIENT", "PERSISTENT", "DATA OR MODEL", "UNKNOWN"):
        drawn.add_column(head, justify="right", no_wrap=True)
    for row in answer.causes[:_MOST_ROWS]:
        counts = (row.transient, row.persistent, row.data_or_model, row.unknown)
        drawn.add_row(shown(row.host) or "?", "?" if row.rank is None else str(row.rank), *map(str, counts))
    parts: list[RenderableType] = [line(), line("Suspicious steps by cause:", style="bold"), drawn]
    if len(answer.causes) > _MOST_ROWS:
        parts.append(line(f"and {len(answer.causes) - _MOST_ROWS} more: --format json", style="dim"))
    for row in answer.causes[:_MOST_ROWS]:
        owner = "unknown rank" if row.rank is None else f"rank {row.rank}"
        parts.append(Indented(line(f"{owner}: {shown(row.advice)}")))
    evidence = [
        _at(one.step).append(f"{'unknown rank' if one.rank is None else f'rank {one.rank}'}: {_evidence(one)}")
        for one in answer.attributions
    ]
    return parts + listed("Evidence:", evidence)


def _evidence(attribution: Attribution) -> str:
    return f"{attribution.suspicion}, {attribution.cause.value}: {shown(attribution.why)}"


def _failures(answer: GuardReport) -> Iterator[Text]:
    for rank in answer.ranks:
        if rank.switched_off:
            parts = shown(", ".join(rank.switched_off))
            yield line(f"rank {rank.rank}: switched off: {parts}")
    for text in answer.errors:
        yield line(shown(text))
    for rank in answer.ranks:
        if rank.lost_lines:
            yield line(f"rank {rank.rank}: {counted(rank.lost_lines, 'event')} could not be written")
        failed = [
            counted(count, noun)
            for count, noun in ((rank.capture_failures, "capture"), (rank.failed_saves, "save"))
            if count
        ]
        if failed:
            yield line(f"rank {rank.rank}: {' and '.join(failed)} failed")


def prometheus(answer: GuardReport) -> str:
    """Return the numbers in the format of node_exporter's textfile collector."""
    lines: list[str] = []
    for field, about in _COUNTERS:
        lines += _metric(f"{field}_total", "counter", about, [(rank, getattr(rank, field)) for rank in answer.ranks])
    for field, about in _GAUGES:
        lines += _metric(field, "gauge", about, [(rank, getattr(rank, field)) for rank in answer.ranks])
    about = "Whether the training ended with too many dropped updates in a row."
    lines += [*_head("stopped", "gauge", about), f"ckpttool_guard_stopped {int(answer.stopped_at is not None)}"]
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, about: str, values: Sequence[tuple[RankReport, float | None]]) -> list[str]:
    rows = [f'ckpttool_guard_{name}{{rank="{rank.rank}"}} {value}' for rank, value in values if value is not None]
    return [*_head(name, kind, about), *rows] if rows else []


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP ckpttool_guard_{name} {about}", f"# TYPE ckpttool_guard_{name} {kind}"]
