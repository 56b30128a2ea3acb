"""Go or no-go in a line, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.domain.finding import Code
from ckpttool.domain.plan import NoResumePoint, ResumePlan
from ckpttool.domain.preflight import Check, Lint, Preflight, Reason
from ckpttool.domain.units import counted
from ckpttool.errors import ExitCode
from ckpttool.render.escape import shown
from ckpttool.render.json import Document, finding_document, plan_document


def verdict(answer: Preflight | Lint, code: ExitCode) -> str:
    """Say it in one line."""
    if not answer.go:
        return f"NO-GO: {counted(len(kinds(blocking_reasons(answer.checks))), 'reason')} (exit {code.value})"
    if isinstance(answer, Preflight) and isinstance(answer.decision, ResumePlan):
        chosen = answer.decision.point.checkpoint
        return f"GO: a launch now resumes from {shown(chosen.name)}, step {chosen.step}"
    return f"{counted(len(answer.checks), 'config')}: nothing that stops a launch"


def ranks_of(answer: Preflight | Lint) -> int | None:
    """Return how many ranks the training has, where that is known."""
    match answer:
        case Preflight(decision=ResumePlan() as plan):
            return plan.point.checkpoint.topology.world_size
        case Preflight(decision=NoResumePoint(rejected=(newest, *_))):
            return newest.checkpoint.topology.world_size
        case _:
            return None


def blocking_reasons(checks: Sequence[Check]) -> list[Reason]:
    """Return what stands against a launch, over all checks."""
    return [reason for check in checks for reason in check.reasons if reason.blocks]


def kinds(reasons: Sequence[Reason]) -> list[list[Reason]]:
    """Group reasons of the same code in the same file, gravest first: 500 lost shards are one line."""
    groups: dict[tuple[Code, str | None], list[Reason]] = {}
    for reason in sorted(reasons, key=lambda each: -each.finding.severity):
        where = reason.file if reason.finding.line is not None else None
        groups.setdefault((reason.finding.code, where), []).append(reason)
    return list(groups.values())


def preflight_document(answer: Preflight, code: ExitCode) -> Document:
    """`ckpttool/preflight/1`."""
    disk = answer.disk
    return {
        "schema": "ckpttool/preflight/1",
        "go": answer.go,
        "exit_code": code.value,
        "config": answer.config,
        "root": answer.root,
        "checks": [_check(check) for check in answer.checks],
        "disk": None
        if disk is None
        else {
            "folder": disk.folder,
            "saves": disk.saves,
            "save_bytes": disk.save_bytes,
            "save_files": disk.save_files,
            "free_bytes": disk.free_bytes,
            "free_files": disk.free_files,
        },
        "plan": None if answer.decision is None else plan_document(answer.decision),
    }


def refusal_document(answer: Preflight, code: ExitCode) -> Document:
    """`ckpttool/plan/1`, and what keeps `launch` from writing a config for it."""
    decided = None if answer.decision is None else plan_document(answer.decision)
    plan = decided if isinstance(decided, dict) else {}
    return {**plan, "go": False, "exit_code": code.value, "checks": [_check(check) for check in answer.checks]}


def lint_document(answer: Lint, code: ExitCode) -> Document:
    """`ckpttool/lint/1`."""
    return {
        "schema": "ckpttool/lint/1",
        "go": answer.go,
        "exit_code": code.value,
        "checks": [_check(check) for check in answer.checks],
    }


def _check(check: Check) -> Document:
    return {
        "name": check.name,
        "outcome": check.outcome.value,
        "summary": check.summary,
        "findings": [{**finding_document(reason.finding), "file": reason.file} for reason in check.reasons],
    }
