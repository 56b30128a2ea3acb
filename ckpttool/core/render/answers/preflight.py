"""The answer of `preflight`, for a launch or for configs alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Row, summary_of
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import Check, DiskNeed, FixedConfig, Lint, Outcome, Preflight, Reason, Reported
from ckpttool.core.domain.settings import dotted
from ckpttool.core.domain.units import counted
from ckpttool.core.render.answers.plan import chosen_checkpoint, plan_document
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import pointer
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Indented, Pairs, line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_REASONS = 6
"""Maximum kinds of reasons on one screen; every other format has all."""

MOST_NOTES = 4
"""Maximum kinds of notes on one screen, shown only if there are no more severe findings."""

_WORDS = {
    Outcome.PASSED: ("ok", "green"),
    Outcome.SKIPPED: ("-", "dim"),
    Outcome.UNKNOWN: ("?", "yellow"),
    Outcome.FAILED: ("NO", "bold red"),
}
"""The result of a check in one word, and its style."""


def document(answer: Preflight | Lint) -> Document:
    """Return `ckpttool/preflight/1` or `ckpttool/lint/1`."""
    return _preflight(answer) if isinstance(answer, Preflight) else _lint(answer)


def _preflight(answer: Preflight) -> Document:
    disk = answer.disk
    return {
        "schema": "ckpttool/preflight/1",
        "go": answer.go,
        "exit_code": answer.exit_code.value,
        "config": answer.config,
        "root": answer.root,
        "checks": [check_document(check) for check in answer.checks],
        "disk": None if disk is None else _disk(disk),
        "allowed": _allowed(answer),
        "plan": None if answer.decision is None else plan_document(answer.decision),
    }


def _disk(need: DiskNeed) -> Document:
    return {
        "folder": need.folder,
        "saves": need.saves,
        "save_bytes": need.save_bytes,
        "save_files": need.save_files,
        "free_bytes": need.free_bytes,
        "free_files": need.free_files,
        **({} if need.host is None else {"host": need.host}),
    }


def _lint(answer: Lint) -> Document:
    return {
        "schema": "ckpttool/lint/1",
        "go": answer.go,
        "exit_code": answer.exit_code.value,
        "checks": [check_document(check) for check in answer.checks],
        "allowed": _allowed(answer),
        "fixed": [
            {"code": fix.code.value, "file": config.path, "line": fix.line, "key": dotted(fix.key), "value": fix.value}
            for config in answer.fixed
            for fix in config.fixes
        ],
        "foreign": list(answer.foreign),
    }


def diff(configs: Iterable[FixedConfig]) -> str:
    """Return the actual or planned changes as a patch; terminal control characters are escaped."""
    lines = [
        line
        for config in configs
        for line in unified_diff(
            config.before.splitlines(), config.after.splitlines(), config.path, config.path, lineterm=""
        )
    ]
    return "\n".join(map(shown, lines))


def _allowed(answer: Preflight | Lint) -> list[Document]:
    return [_reason(reason) for check in answer.checks for reason in check.allowed]


def _reason(reason: Reason) -> Document:
    return {**finding_document(reason.finding), "file": reason.file}


def check_document(check: Check) -> Document:
    """Return a check with all its findings, each with its file."""
    return {
        "name": check.name,
        "outcome": check.outcome.value,
        "summary": check.summary,
        "findings": [_reason(reason) for reason in check.reasons],
    }


def table(answer: Preflight | Lint) -> RenderableType:
    """Show the answer, the checks, and the problems."""
    checks, go = answer.checks, answer.go
    against = blocking_reasons(checks)
    notes = [reason for check in checks for reason in check.reasons if not reason.blocks]
    shows_notes = go or answer.view.everything
    listed = _first_kinds(answer, against, MOST_REASONS)
    listed_notes = _first_kinds(answer, notes, MOST_NOTES) if shows_notes else []
    codes = {kind[0].finding.code for kind in (*listed, *listed_notes)}
    longest = max((len(style) for style, _ in _WORDS.values()), default=0)
    rows = []
    for check in checks:
        ended, style = word(check)
        name = line(f"{ended:{longest}}", style=style).append(f"  {shown(check.name)}", style="")
        rows.append((name, shown(_row_text(check, codes))))
    parts: list[RenderableType] = [line(verdict(answer), style="bold green" if go else "bold red"), line()]
    parts.append(Pairs(rows))
    parts += _listed(answer, against, listed, "red")
    if shows_notes:
        parts += _listed(answer, notes, listed_notes, "dim")
    elif notes:
        parts.append(line(f"\nand {counted(len(notes), 'note')}: -v", style="dim"))
    if answer.view.everything:
        for reason in (reason for check in checks for reason in check.allowed):
            message = f"{_place(reason)}{shown(reason.finding.message)}"
            parts.append(line(f"\nallowed {reason.finding.code.value} {message}", style="dim"))
    for config in answer.fixed if isinstance(answer, Lint) else ():
        values = ", ".join(f"`{dotted(fix.key)}: {fix.value}` (line {fix.line})" for fix in config.fixes)
        parts.append(line(f"\nfixed {shown(config.path)}: {shown(values)}"))
    if isinstance(answer, Lint) and answer.foreign:
        parts.append(line(f"\nno training config: {counted(len(answer.foreign), 'other YAML file')}", style="dim"))
    return stack(*parts, *pointer([reason.finding for reason in against]))


def word(check: Check) -> tuple[str, str]:
    """Return the result of a check in one word, with its style."""
    return _WORDS[Outcome.UNKNOWN if check.unsure and check.outcome is Outcome.PASSED else check.outcome]


def _row_text(check: Check, codes: Collection[Row]) -> str:
    """Return a check's summary, or a reference to its reason, because a start's finding begins with the summary.

    Args:
        check: The check of the row.
        codes: The codes of the findings below the rows.
    """
    if check.name != "start":
        return check.summary
    for reason in check.reasons:
        code = reason.finding.code
        is_allowed = code is Code.START_DIFFERS and not reason.blocks
        if code in codes:
            return f"{code.value} is allowed, see below" if is_allowed else f"see {code.value} below"
        if is_allowed:
            return f"{check.summary}; {code.value} is allowed"
    if check.allowed:
        return f"{check.summary}; {check.allowed[0].finding.code.value} is allowed"
    return check.summary


def _first_kinds(answer: Preflight | Lint, reasons: Sequence[Reason], most: int) -> list[list[Reason]]:
    """Return the reasons that fit on one screen, grouped by kind; in the full view, return each separately."""
    if answer.view.everything:
        return [[reason] for reason in _gravest_first(reasons)]
    return kinds(reasons)[:most]


def _listed(
    answer: Preflight | Lint, reasons: Sequence[Reason], listed: Sequence[Sequence[Reason]], style: str
) -> Iterator[RenderableType]:
    view = answer.view
    for kind in listed:
        first = kind[0].finding
        text = line(first.severity.word, style=style)
        text.append(f" {first.code.value}", style="bold")
        message = summary_of([reason.finding for reason in kind], ranks_of(answer), view)
        text.append(f" {_place(kind[0])}{shown(message)}", style="")
        yield line()
        yield text
        if first.remedy:
            yield Indented(line(f"fix: {shown(first.remedy)}"))
    others = 0 if view.everything else len(kinds(reasons)) - len(listed)
    if others:
        yield line(f"\nand {counted(others, 'other kind')}: -v", style="dim")


def _place(reason: Reason) -> str:
    if reason.file is None:
        return ""
    at = f":{reason.finding.line}" if reason.finding.line is not None else ""
    return f"{shown(reason.file)}{at}: "


def verdict(answer: Preflight | Lint | Reported) -> str:
    """Return the verdict in one line."""
    if isinstance(answer, Reported):
        return answer.headline
    if not answer.go:
        code = answer.exit_code
        return f"NO-GO: {counted(len(kinds(blocking_reasons(answer.checks))), 'reason')} (exit {code.value})"
    if isinstance(answer, Preflight) and isinstance(answer.decision, ResumePlan):
        chosen = chosen_checkpoint(answer.decision)
        if any(check.name == "start" and (check.unsure or check.reasons) for check in answer.checks):
            return f"GO: a start resumes from {chosen} if it is set to load it"
        return f"GO: a launch now resumes from {chosen}"
    if isinstance(answer, Preflight) and isinstance(answer.decision, FreshStart):
        return "GO: a launch now starts from scratch"
    return f"{counted(len(answer.checks), 'config')}: nothing prevents a launch"


def ranks_of(answer: Preflight | Lint | Reported) -> int | None:
    """Return the number of ranks of the training run, or None if that is unknown."""
    match answer:
        case Preflight(decision=ResumePlan() as plan):
            return plan.point.checkpoint.topology.world_size
        case Preflight(decision=NoResumePoint(rejected=(newest, *_))):
            return newest.checkpoint.topology.world_size
        case _:
            return None


def blocking_reasons(checks: Sequence[Check]) -> list[Reason]:
    """Return the reasons that prevent a launch, over all checks."""
    return [reason for check in checks for reason in check.reasons if reason.blocks]


def kinds(reasons: Sequence[Reason]) -> list[list[Reason]]:
    """Group reasons by code and file, most severe first, so that 500 lost shards take one line."""
    groups: dict[tuple[Row, str | None], list[Reason]] = {}
    for reason in _gravest_first(reasons):
        where = reason.file if reason.finding.line is not None else None
        groups.setdefault((reason.finding.code, where), []).append(reason)
    return list(groups.values())


def _gravest_first(reasons: Sequence[Reason]) -> list[Reason]:
    return sorted(reasons, key=lambda reason: -reason.finding.severity)
