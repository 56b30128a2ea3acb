"""Go or no-go: what each check saw, in one line, and what of it stands against a launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.data_position import DataPosition, Samples, SkipBatches, Stateful, Tokens, Unknown, skip_of
from ckpttool.domain.finding import Code, Finding, Severity, blocking, seen_in_part, told
from ckpttool.domain.health import Health
from ckpttool.domain.plan import NoResumePoint, ResumePlan
from ckpttool.domain.preflight import DiskNeed
from ckpttool.domain.units import counted, on_all
from ckpttool.errors import ExitCode
from ckpttool.trainers.mindformers import launch_check, loaded_instead
from ckpttool.trainers.mindformers.train_config import TrainConfig

_MOST_REJECTED = 8
"""Newer checkpoints that are told one by one; `resolve` tells them all."""

_OF_HEALTH = frozenset({
    Code.MARKED_UNHEALTHY, Code.HEALTH_UNKNOWN, Code.HEALTH_UNREADABLE, Code.HEALTH_CONTRADICTORY,
    Code.HEALTH_NAMES_NOTHING, Code.HEALTH_UNHEARD, Code.LOG_UNREADABLE, Code.NORM_ABOVE_THRESHOLD, Code.SAVED_IN_SPIKE,
    Code.SAVED_AFTER_STRIKE, Code.REWOUND_PAST,
})  # fmt: skip
_NOT_SEEN = frozenset({Code.UNREADABLE, Code.CHANGED_WHILE_READING})
_OF_STREAMS = frozenset({Code.STREAM_STATE_MISSING, Code.STREAM_POSITION_FIXED})
_OF_COUNTERS = frozenset({Code.COUNTER_ROUNDED, Code.SINK_SIZE_CHANGED, Code.EPOCH_COUNTER_SHIFTS})

NEVER_ALLOWED = frozenset({Code.NOTHING_TO_RESUME, Code.CANNOT_ANSWER, Code.CONFIG_UNUSABLE})
"""Findings that no user can accept: they say that there is nothing to launch."""


def allow(findings: Iterable[Finding], allowed: Iterable[Code]) -> tuple[Finding, ...]:
    """Make notes of what the user has seen and accepts."""
    accepted = frozenset(allowed) - NEVER_ALLOWED
    return tuple(
        replace(finding, severity=Severity.NOTE) if finding.code in accepted else finding for finding in findings
    )


def by_check(
    decision: ResumePlan | NoResumePoint, config: TrainConfig, *, strict: bool, devices: int | None
) -> dict[str, tuple[Finding, ...]]:
    """Return what is known about a decision under the check that it belongs to; what is wrong with the config is not.

    Args:
        decision: As `resolve` gave it, with this config.
        config: The base config.
        strict: Whether a newer checkpoint that was not chosen stands against a launch.
        devices: Devices that will be started in all; None where not known.
    """
    found: dict[str, list[Finding]] = {name: [] for name in ("config", "checkpoint", "health", "launch")}
    found["checkpoint"] += _chosen_or_not(decision, strict=strict)
    known = list(decision.findings)
    if isinstance(decision, ResumePlan) and devices is not None:
        known += launch_check.other_devices(config, devices)
    for finding in known:
        found[_check_of(finding, config)].append(finding)
    return {name: tuple(findings) for name, findings in found.items() if name != "config"}


def _check_of(finding: Finding, config: TrainConfig) -> str:
    if finding in config.findings:
        return "config"
    if finding.code in _OF_HEALTH:
        return "health"
    if finding.code in _OF_COUNTERS | _OF_STREAMS | loaded_instead.CODES or finding.path == config.path:
        return "launch"
    return "checkpoint"


def stopped(message: str, code: ExitCode) -> Finding:
    """Say what kept a question from being answered."""
    if code is ExitCode.UNSAFE:
        return Finding(code=Code.CANNOT_ANSWER, severity=Severity.UNSAFE, message=message)
    return Finding(code=Code.CANNOT_ANSWER, severity=Severity.UNKNOWN, message=message)


def unusable(message: str, path: str, line: int | None) -> Finding:
    """Say why a config cannot be used at all."""
    return Finding(
        code=Code.CONFIG_UNUSABLE,
        severity=Severity.DAMAGE,
        message=message,
        path=path,
        remedy="mend the file, or give another; MindFormers reads it no better",
        line=line,
    )


def _chosen_or_not(decision: ResumePlan | NoResumePoint, *, strict: bool) -> tuple[Finding, ...]:
    if isinstance(decision, NoResumePoint):
        nothing = () if seen_in_part(decision.findings) else (_nothing(decision),)
        return (*nothing, *_rejected_reasons(decision))
    return (*decision.point.findings, *_passed_over(decision, Severity.SUSPECT if strict else Severity.NOTE))


def not_editable(message: str, path: str) -> Finding:
    """Say that no launch config can be made of the base config."""
    return Finding(
        code=Code.CONFIG_DISAGREES,
        severity=Severity.SUSPECT,
        message=f"`ckpttool launch` cannot make a launch config of it: {message}",
        path=path,
        remedy="write the settings that it names in the plain form `key: value`",
    )


def _nothing(decision: NoResumePoint) -> Finding:
    seen = len(decision.rejected)
    return Finding(
        code=Code.NOTHING_TO_RESUME,
        severity=Severity.DAMAGE,
        message=f"none of the {seen} checkpoints in {decision.root} can be resumed from"
        if seen
        else f"there is no checkpoint in {decision.root} that can be resumed from",
        remedy="ckpttool resolve says for each why not; restore what is missing, or start anew",
    )


def _rejected_reasons(decision: NoResumePoint) -> Iterator[Finding]:
    """Give every reason against the newest, which is the one to repair, and the gravest against each of the others."""
    for place, one in enumerate(decision.rejected[:_MOST_REJECTED]):
        if place == 0:
            yield from one.reasons
        else:
            yield max(one.reasons, key=lambda reason: reason.severity)


def _passed_over(plan: ResumePlan, severity: Severity) -> Iterator[Finding]:
    """Tell of newer ones. One that could not be looked at may be whole: its steps would be done again for nothing."""
    for place, one in enumerate(plan.point.rejected):
        why = max(one.reasons, key=lambda reason: reason.severity)
        alike = [reason for reason in one.reasons if reason.code is why.code]
        not_seen = why.code in _NOT_SEEN
        if place >= _MOST_REJECTED and not not_seen:
            continue
        yield Finding(
            code=Code.NEWER_NOT_CHOSEN,
            severity=Severity.UNKNOWN if not_seen else severity,
            message=f"{one.checkpoint.name} ({_step(one.checkpoint)}) is newer and was not chosen: "
            f"{why.code.value}, {told(alike, one.checkpoint.topology.world_size)}",
            path=why.path,
            remedy=why.remedy,
        )


def _step(checkpoint: Checkpoint) -> str:
    return "its step is unknown" if checkpoint.step is None else f"step {checkpoint.step}"


def checkpoint_summary(decision: ResumePlan | NoResumePoint) -> str:
    """Say what would be resumed from, and how much is known of it."""
    if isinstance(decision, NoResumePoint):
        in_part = seen_in_part(decision.findings)
        root = decision.root
        return f"unknown from this machine alone: {root}" if in_part else f"nothing to resume from in {root}"
    point = decision.point
    ranks = point.checkpoint.topology.world_size or len(point.checkpoint.ranks)
    on = f"whole {on_all(ranks)}" if ranks else "whole"
    if seen_in_part(decision.findings):
        on = f"whole on the {counted(ranks, 'rank')} seen here"
    lost = f"; {counted(point.lost_steps, 'step')} to be done again" if point.lost_steps else ""
    return (
        f"{point.checkpoint.name}, {_step(point.checkpoint)}, {on} ({point.evidence.word}: {point.verdict.value}){lost}"
    )


def health_summary(checkpoint: Checkpoint, recorded: Health) -> str:
    """Say what is known of the chosen checkpoint's health, and from where.

    Args:
        checkpoint: As the logs judged it, where they had a say.
        recorded: What the training recorded.
    """
    if checkpoint.health is recorded:
        known = recorded is not Health.UNKNOWN
        return f"{recorded.value}, as it was recorded" if known else "unknown: nothing is recorded"
    written = "nothing" if recorded is Health.UNKNOWN else recorded.value
    return f"{checkpoint.health.value}, by the log; {written} is recorded"


def config_summary(findings: Iterable[Finding]) -> str:
    """Count what is wrong with a config."""
    found = tuple(findings)
    problems = len(blocking(found))
    notes = len(found) - problems
    if not found:
        return "nothing against it"
    told = [counted(problems, "problem")] if problems else []
    return " and ".join([*told, counted(notes, "note")] if notes else told)


def launch_summary(plan: ResumePlan, config: TrainConfig, changes: int) -> str:
    """Say what will be started, in the numbers that decide whether it fits."""
    skip = skip_of(plan.data)
    facts = [f"{counted(changes, 'setting')} to change"]
    if config.world_size is not None:
        facts.append(counted(config.world_size, "rank"))
    if skip is not None and skip.global_batch_size is not None:
        facts.append(f"batches of {counted(skip.global_batch_size, 'sample')}")
    return ", ".join([*facts, _data_told(plan.data)])


def _data_told(position: DataPosition) -> str:
    match position:
        case SkipBatches(batches=0):
            return "data from its beginning"
        case SkipBatches(batches=batches):
            return f"data_skip_steps {batches}"
        case Samples() | Tokens():
            return "the data counted by MindFormers"
        case Stateful(where=where):
            return f"the data from {where}"
        case Unknown(why=why):  # pragma: no branch  mypy knows all
            return f"the data where nobody knows: {why}"


def disk_findings(need: DiskNeed) -> tuple[Finding, ...]:
    """Say what the next saves lack."""
    return (*_space(need), *_inodes(need), *_rights(need))


def _space(need: DiskNeed) -> Iterator[Finding]:
    wanted = need.saves * need.save_bytes
    if need.free_bytes < wanted:
        fits = need.free_bytes // need.save_bytes
        yield Finding(
            code=Code.DISK_SPACE_LOW,
            severity=Severity.SUSPECT,
            message=f"{counted(need.saves, 'save')} of {_size(need.save_bytes)} need {_size(wanted)}, but "
            f"{_size(need.free_bytes)} are free: {counted(fits, 'more save')} would fit",
            path=need.folder,
            expected=str(wanted),
            actual=str(need.free_bytes),
            remedy="make room (older runs' checkpoints are never removed by MindFormers), or keep fewer",
        )


def _inodes(need: DiskNeed) -> Iterator[Finding]:
    wanted = need.saves * need.save_files
    if need.free_files is not None and need.free_files < wanted:
        yield Finding(
            code=Code.DISK_INODES_LOW,
            severity=Severity.SUSPECT,
            message=f"{counted(need.saves, 'save')} of {counted(need.save_files, 'file')} need {wanted:,} inodes, but "
            f"{need.free_files:,} are free",
            path=need.folder,
            expected=str(wanted),
            actual=str(need.free_files),
            remedy="remove many small files, or save to another file system",
        )


def _rights(need: DiskNeed) -> Iterator[Finding]:
    for folder in need.unwritable:
        yield Finding(
            code=Code.FOLDER_NOT_WRITABLE,
            severity=Severity.SUSPECT,
            message=f"this user may not write to {folder}, where the next save goes",
            path=folder,
            remedy="start as the user who owns it, or mend its mode; --allow folder-not-writable where another user "
            "starts the training",
        )


def disk_unknown(folder: str, why: str) -> Finding:
    """Say that nobody knows whether the next saves fit."""
    return Finding(
        code=Code.DISK_UNKNOWN,
        severity=Severity.UNKNOWN,
        message=f"how much room the next saves have in {folder} cannot be told: {why}",
        path=folder,
        remedy="look at the mount, or accept it with --allow disk-unknown",
    )


def disk_summary(need: DiskNeed) -> str:
    """Say what the next saves need of what there is."""
    files = "" if need.free_files is None else f" and {need.free_files:,} inodes"
    return (
        f"{counted(need.saves, 'save')} of {_size(need.save_bytes)} in {counted(need.save_files, 'file')} each; "
        f"{_size(need.free_bytes)}{files} free"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):,.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes:,} bytes"
