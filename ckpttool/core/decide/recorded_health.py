"""Recorded health of checkpoints, and the cases in which the record is incomplete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, in_order, note, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health, HealthBook, worst_health

IGNORE_HEALTH = "--ignore-health chooses it anyway"
"""Remedy for a checkpoint that is rejected only for its health; the option overrides nothing else."""


def attach_health(inventory: Inventory, book: HealthBook, names: Sequence[str | None]) -> Inventory:
    """Set the recorded health of each checkpoint; it is unknown if there is no record.

    A trainer may record only one rank's file. A record of another rank's file, by any writer, is about the same save;
    the worst record counts.

    Args:
        inventory: The tree's inventory.
        book: The trainer's health file.
        names: The name of each checkpoint in that file, in the order of the checkpoints. If it is None, the record is
            inside the checkpoint, and the health from the scan does not change.
    """
    findings = [*inventory.findings, *book.findings]
    recorded = {record.name: record.health for record in book.records}
    unmatched = recorded.keys() - set(names)
    checkpoints, attached = [], set()
    for checkpoint, name in zip(inventory.checkpoints, names, strict=True):
        if name is None:
            checkpoints.append(checkpoint)
            continue
        names_here = {shard.path.rpartition("/")[2] for shard in checkpoint.shards} & unmatched if unmatched else set()
        attached |= names_here
        marks = [recorded[recorded_name] for recorded_name in sorted({name, *names_here} & recorded.keys())]
        checkpoints.append(replace(checkpoint, health=worst_health(marks) if marks else Health.UNKNOWN))
    ghosts = sorted(unmatched - attached)
    if ghosts and None not in names:
        findings.append(_ghosts(ghosts, book.path))
    return replace(inventory, checkpoints=tuple(checkpoints), findings=in_order(findings))


def _ghosts(names: list[str], path: str | None) -> Finding:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return note(
        Code.HEALTH_NAMES_NOTHING,
        f"the health file has an entry for {names[0]}{more}, but no such checkpoint exists: pruned, or never written",
        path=path,
    )


def against(findings: Iterable[Finding], *, ignore: bool) -> list[Finding]:
    """Return the findings against a checkpoint; for a drifted but intact replica, only the findings about its health.

    Args:
        findings: Findings about the checkpoint or its shards.
        ignore: Whether to ignore the health.
    """
    return [finding for finding in blocking(findings) if not ignore or finding.code.taken_with != "--ignore-health"]


def health_reason(checkpoint: Checkpoint, *, require: bool, ignore: bool) -> Finding | None:
    """Return a finding if a checkpoint's health forbids resuming from it; otherwise None.

    Args:
        checkpoint: The checkpoint, with its recorded health.
        require: Whether unknown health also forbids a resume.
        ignore: Whether to ignore the health.
    """
    if ignore:
        return None
    mark = checkpoint.mark
    if mark is not None and mark.code is Code.MARKED_BAD:
        return replace(mark, severity=Severity.SUSPECT, remedy=f"{mark.remedy}; {IGNORE_HEALTH}")
    if checkpoint.health is Health.UNHEALTHY:
        return suspect(
            Code.MARKED_UNHEALTHY,
            f"{checkpoint.name} was recorded as unhealthy when it was saved",
            remedy=IGNORE_HEALTH,
        )
    if checkpoint.health is Health.UNKNOWN and require:
        return suspect(
            Code.HEALTH_UNKNOWN,
            f"the health of {checkpoint.name} is not recorded, and --require-health requires it",
            remedy="judge it from the training log with ckpttool health, or omit --require-health",
        )
    return None


def record_without_answer(book: HealthBook, *, named: bool, health: Health) -> tuple[Finding, ...]:
    """Report that a choice was made without a health file that should have been used.

    A truncated file still reports bad checkpoints, but its missing end is about the newest ones. A user who names a
    file expects the complete file to be used.

    Args:
        book: The readable contents of the file.
        named: Whether the user named the file.
        health: Health of the chosen checkpoint; facts from a log or from the save itself replace the file.
    """
    unread = any(finding.severity is Severity.UNKNOWN for finding in book.findings)
    if not book.over_limit and not (unread and (named or health is Health.UNKNOWN)):
        return ()
    over_limit = "is too large to be read completely" if book.over_limit else "cannot be read completely"
    why = "was requested and cannot be read" if named else over_limit
    return (
        unknown(
            Code.HEALTH_UNHEARD,
            f"the health file {why}: it may record the chosen checkpoint as unhealthy",
            path=book.path,
            remedy="pass a readable one with --health-file, or accept unknown health with --allow-unknown-health",
        ),
    )


def accepted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Turn findings about unknown health into notes, because the user accepts unknown health."""
    codes = {Code.HEALTH_UNREADABLE, Code.HEALTH_UNKNOWN}
    return tuple(replace(finding, severity=Severity.NOTE) if finding.code in codes else finding for finding in findings)
