"""Go or no-go for a launch: the findings against it, grouped by check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.core.domain.finding import (
    NOT_SEEN,
    Code,
    Finding,
    Row,
    Severity,
    damage,
    summary_of,
    suspect,
    unknown,
    unsafe,
)
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.launch import LaunchConfig
from ckpttool.core.domain.plan import MOST_REJECTED, FreshStart, JudgedStart, NoResumePoint, Outcome, ResumePlan
from ckpttool.core.domain.preflight import DiskNeed
from ckpttool.core.domain.settings import RunConfig
from ckpttool.core.domain.units import at_step, counted, in_gib
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode


def allow(findings: Iterable[Finding], allowed: Iterable[Row]) -> tuple[Finding, ...]:
    """Turn the findings that the user accepts into notes."""
    accepted = {code for code in allowed if code.may_be_allowed}
    return tuple(
        replace(finding, severity=Severity.NOTE) if finding.code in accepted else finding for finding in findings
    )


def by_check(
    decision: ResumePlan | NoResumePoint,
    config: RunConfig | None,
    *,
    strict: bool,
    of_devices: Iterable[Finding] = (),
    view: View = USUAL,
) -> dict[str, tuple[Finding, ...]]:
    """Return the findings of a decision, grouped by check; findings about the config are left out.

    Args:
        decision: The decision of `resolve` with this config.
        config: The base config, whose findings belong to a separate check; None if there is no config.
        strict: Whether a rejected newer checkpoint prevents a launch.
        of_devices: The trainer's findings about the devices to be started.
        view: Whether ranks are also grouped by machine.
    """
    by_name: dict[str, list[Finding]] = {"checkpoint": [*_chosen_or_not(decision, view, strict=strict)]}
    by_name |= {"health": [], "launch": []}
    for finding in (*decision.findings, *of_devices):
        if config is None or finding not in config.findings:
            by_name[finding.code.check].append(finding)
    return {name: tuple(findings) for name, findings in by_name.items()}


def against_fresh(
    decision: FreshStart, edited: LaunchConfig | None, start: JudgedStart | None, *, config: str | None
) -> tuple[Finding, ...]:
    """Report a config with which the run would not start from scratch.

    Args:
        decision: The start from scratch.
        edited: The config that `launch` would write; None if it writes none.
        start: The simulated start; None if the trainer is unknown.
        config: The path of the config; None if it was not given.
    """
    if edited is not None and edited.changes:
        changes = ", ".join(f"`{change.key}: {change.before}`" for change in edited.changes)
        message = f"as configured, the start tries to resume, and there is no checkpoint: {changes}"
        remedy = (
            f"ckpttool launch {decision.root} --or-start --config {config} --output NEW.yaml, and start with the new "
            f"config, or --allow {Code.START_DIFFERS.value} if a launch follows"
        )
        return (suspect(Code.START_DIFFERS, message, path=config, remedy=remedy),)
    if edited is not None or config is None or start is None or start.simulation is None or not start.is_known:
        return ()
    if start.simulation.outcome is Outcome.SCRATCH:
        return ()
    message = f"as configured, the run would not start from scratch: {start.reason}"
    remedy = f"remove the setting that loads a checkpoint, or --allow {Code.START_DIFFERS.value} if it is intended"
    return (suspect(Code.START_DIFFERS, message, path=config, line=start.line, remedy=remedy),)


def devices_unknown(decision: ResumePlan | NoResumePoint, config: RunConfig) -> tuple[Finding, ...]:
    """Report that the number of devices for a launch is unknown."""
    message = "the config does not record how many devices to start"
    if isinstance(decision, ResumePlan):
        checkpoint = decision.point.checkpoint
        if checkpoint.topology.world_size is not None:
            return ()
        message = f"neither the config nor {checkpoint.name} records how many devices to start"
    elif not isinstance(decision, FreshStart):
        return ()
    if config.world_size is not None:
        return ()
    return (
        unknown(
            Code.DEVICES_UNKNOWN,
            message,
            path=config.path,
            remedy="pass --devices N to preflight, --devices-per-node N to launch",
        ),
    )


def stopped(message: str, code: ExitCode) -> Finding:
    """Return a finding for the error that prevented an answer."""
    if code is ExitCode.UNSAFE:
        return unsafe(Code.CANNOT_ANSWER, message)
    if code is ExitCode.NOTHING_TO_RESUME:
        return damage(Code.NOTHING_TO_RESUME, message)
    return unknown(Code.CANNOT_ANSWER, message)


def unusable(message: str, path: str, line: int | None, remedy: str | None = None) -> Finding:
    """Report why neither ckpttool nor the trainer can use a config."""
    return damage(
        Code.CONFIG_UNUSABLE,
        message,
        path=path,
        remedy=remedy or "repair the file, or pass another one: its trainer cannot read it either",
        line=line,
    )


def _chosen_or_not(decision: ResumePlan | NoResumePoint, view: View, *, strict: bool) -> tuple[Finding, ...]:
    if isinstance(decision, NoResumePoint):
        nothing = (_nothing(decision, view),) if decision.is_sure else ()
        return (*nothing, *_rejected_reasons(decision))
    return (*decision.point.findings, *_passed_over(decision, Severity.SUSPECT if strict else Severity.NOTE, view))


def not_editable(message: str, path: str) -> Finding:
    """Report that no launch config can be made from the base config."""
    return suspect(
        Code.CONFIG_DISAGREES,
        f"`ckpttool launch` cannot make a launch config from it: {message}",
        path=path,
        remedy="write the settings that the message names in the plain form `key: value`",
    )


def _nothing(decision: NoResumePoint, view: View) -> Finding:
    rejected_count = len(decision.rejected)
    message = f"no checkpoint in {decision.root} can be resumed from"
    remedy = "ckpttool resolve shows the reason for each; restore the missing files, or start from scratch"
    if not decision.rejected:
        remedy = "no checkpoint was saved there: name another folder, or start the training from scratch"
    remedy = decision.where_else or remedy
    if rejected_count:
        message = f"none of the {rejected_count} checkpoints in {decision.root} can be resumed from"
    if decision.is_named:
        message = f"{decision.rejected[0].checkpoint.name} in {decision.root} cannot be resumed from"
    for finding in decision.findings:
        if finding.code is Code.RANKS_TO_RESTORE:
            message, remedy = f"{message}: {summary_of([finding], view=view)}", finding.remedy or remedy
    # If the tree has a different number of ranks, the config's number is the cause, whatever else is damaged.
    for why in decision.rejected[0].reasons if rejected_count else ():
        if why.code in {Code.WORLD_SIZE_DIFFERS, Code.WORLD_SIZE_REFUSED}:
            message, remedy = f"{message}: {why.message}", why.remedy or remedy
    return damage(Code.NOTHING_TO_RESUME, message, remedy=remedy)


def _rejected_reasons(decision: NoResumePoint) -> Iterator[Finding]:
    """Yield all reasons against the newest checkpoint, and the worst reason against each older one.

    The finding about an abandoned checkpoint is only a note if another finding says that it may not be abandoned.
    """
    is_open = any(finding.code is Code.ABANDONED_BRANCH for finding in decision.findings)
    for place, rejection in enumerate(decision.rejected[:MOST_REJECTED]):
        gravest = max(rejection.reasons, key=lambda reason: reason.severity)
        for reason in rejection.reasons if place == 0 else [gravest]:
            is_doubted = is_open and reason.code is Code.ABANDONED_BRANCH
            yield replace(reason, severity=Severity.NOTE) if is_doubted else reason


def _passed_over(plan: ResumePlan, severity: Severity, view: View) -> Iterator[Finding]:
    """Report newer checkpoints that were rejected.

    A checkpoint that could not be checked may be intact, so that its steps would be repeated.
    """
    healed = {finding.path: finding.remedy for finding in plan.findings if finding.code is Code.CAN_BE_HEALED}
    for place, rejection in enumerate(plan.point.rejected):
        why = max(rejection.reasons, key=lambda reason: reason.severity)
        same_code = [reason for reason in rejection.reasons if reason.code is why.code]
        not_seen = why.code in NOT_SEEN or why.is_tie
        if place >= MOST_REJECTED and not not_seen:
            continue
        yield Finding(
            code=Code.NEWER_NOT_CHOSEN,
            severity=Severity.UNKNOWN if not_seen else severity,
            message=f"{rejection.checkpoint.name} ({at_step(rejection.checkpoint.step)}) is newer and was not chosen: "
            f"{why.code.value}, {summary_of(same_code, rejection.checkpoint.topology.world_size, view)}",
            path=why.path,
            remedy=healed.get(rejection.checkpoint.name, why.remedy),
        )


def disk_findings(need: DiskNeed) -> tuple[Finding, ...]:
    """Report missing disk space, inodes or write permissions for the next saves."""
    return (*_space(need), *_inodes(need), *_rights(need))


def _space(need: DiskNeed) -> Iterator[Finding]:
    bytes_needed = need.saves * need.save_bytes
    of_older = f" ({need.stays})" if need.stays is not None else ""
    if need.free_bytes < bytes_needed:
        fits = need.free_bytes // need.save_bytes
        yield suspect(
            Code.DISK_SPACE_LOW,
            f"{counted(need.saves, 'save')} of {in_gib(need.save_bytes)} need {in_gib(bytes_needed)}, but "
            f"{in_gib(need.free_bytes)} are free{_on(need)}: {counted(fits, 'more save')} would fit",
            path=need.folder,
            expected=str(bytes_needed),
            actual=str(need.free_bytes),
            remedy=f"free space{of_older}: ckpttool prune, then ckpttool trash empty; or keep fewer checkpoints",
        )


def _inodes(need: DiskNeed) -> Iterator[Finding]:
    files_needed = need.saves * need.save_files
    if need.free_files is not None and need.free_files < files_needed:
        yield suspect(
            Code.DISK_INODES_LOW,
            f"{counted(need.saves, 'save')} of {counted(need.save_files, 'file')} need {files_needed:,} inodes, but "
            f"{need.free_files:,} are free{_on(need)}",
            path=need.folder,
            expected=str(files_needed),
            actual=str(need.free_files),
            remedy="free inodes by deleting small files, or save to another file system",
        )


def _rights(need: DiskNeed) -> Iterator[Finding]:
    for folder in need.unwritable:
        yield suspect(
            Code.FOLDER_NOT_WRITABLE,
            f"this user has no permission to write to {folder}{_on(need)}, the folder of the next save",
            path=folder,
            remedy="start as the user who owns it, or correct its permissions; --allow folder-not-writable if another "
            "user starts the training",
        )


def _on(need: DiskNeed) -> str:
    return "" if need.host is None else f" on {need.host}"


def disk_unknown(folder: str, why: str) -> Finding:
    """Report that it is unknown whether the next saves fit on the disk."""
    return unknown(
        Code.DISK_UNKNOWN,
        f"the free space for the next saves in {folder} is unknown: {why}",
        path=folder,
        remedy="check the mount, or accept it with --allow disk-unknown",
    )
