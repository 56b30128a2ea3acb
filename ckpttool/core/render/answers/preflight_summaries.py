"""The result of each check of a preflight, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.data_position import (
    DataEffect,
    DataPosition,
    GoesOn,
    SkipBatches,
    TrainersSkip,
    Unknown,
    skip_of,
)
from ckpttool.core.domain.finding import Finding, blocking, seen_in_part
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.launch import LaunchConfig
from ckpttool.core.domain.plan import FreshStart, JudgedStart, NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import DiskNeed
from ckpttool.core.domain.settings import RunConfig
from ckpttool.core.domain.units import counted, in_gib, on_all, step_and_name
from ckpttool.core.render.answers.position import effect_words, seen_twice
from ckpttool.core.render.answers.resume import fragment
from ckpttool.core.render.escape import shown


def checkpoint_summary(decision: ResumePlan | NoResumePoint) -> str:
    """Name the checkpoint that would be resumed from, and how thoroughly it was checked."""
    if isinstance(decision, NoResumePoint):
        if seen_in_part(decision.findings):
            return f"unknown from this machine alone: {decision.root}"
        result = "nothing to resume from" if decision.is_sure else "unknown which checkpoint to resume from"
        return f"{result} in {decision.root}"
    point = decision.point
    ranks = point.checkpoint.topology.world_size
    on = "intact" if ranks is None else f"intact {on_all(ranks)}"
    if seen_in_part(decision.findings):
        on = f"intact on the {counted(len(point.checkpoint.ranks), 'rank')} seen here"
    took = "" if point.lost_time is None else f", about {point.lost_time.words}"
    lost = f"; {counted(point.lost_steps, 'step')} to redo{took}" if point.lost_steps else ""
    chosen = step_and_name(point.step, point.checkpoint.name)
    return f"{chosen}, {on} ({point.evidence.word}: {point.verdict.value}){lost}"


def fresh_summary(start: FreshStart) -> str:
    """Describe a start from scratch, with its ground."""
    aside = f"; not loaded: {', '.join(start.set_aside)}, which is unfinished" if start.set_aside else ""
    return f"none yet, so the run starts from scratch: {start.root} {start.ground}{aside}"


def fresh_start_summary(edited: LaunchConfig | None, start: JudgedStart | None) -> str:
    """Describe the result of the current start of a run that has never saved.

    Args:
        edited: The config that `launch` would write; None if it writes none.
        start: The simulated start; None if the trainer is unknown.
    """
    if edited is not None:
        return "as configured, it tries to resume" if edited.changes else "as configured, it starts from scratch"
    return "unknown: give --config or --layout to name the trainer" if start is None else start.reason


def health_summary(checkpoint: Checkpoint, recorded: Health, *, torn: bool = False) -> str:
    """Describe the health of the chosen checkpoint, with its source.

    Args:
        checkpoint: The checkpoint, as judged by the logs if logs were used.
        recorded: The health that the training run recorded.
        torn: Whether part of the record cannot be read.
    """
    mark = checkpoint.mark
    if mark is not None and checkpoint.health is recorded:
        return f"{recorded.value}: {mark.message}"
    nothing = "the record cannot be read" if torn else "nothing is recorded"
    if checkpoint.health is recorded:
        is_known = recorded is not Health.UNKNOWN
        return f"{recorded.value}, as recorded" if is_known else f"unknown: {nothing}"
    if recorded is Health.UNKNOWN:
        return f"{checkpoint.health.value}, by the log; {nothing}"
    return f"{checkpoint.health.value}, by the log; recorded as {recorded.value}"


def config_summary(findings: Iterable[Finding], silenced: Sequence[Finding] = ()) -> str:
    """Count the problems of a config, and the problems that the config's own comments allow."""
    listed = tuple(findings)
    problems = len(blocking(listed))
    notes = len(listed) - problems
    counts = [counted(problems, "problem")] if problems else []
    counts += [counted(notes, "note")] if notes else []
    allowed = f"; {len(silenced)} allowed by a comment" if silenced else ""
    return (" and ".join(counts) or "no problems found") + allowed


def launch_summary(
    plan: ResumePlan, config: RunConfig, changes: int, *, trainer: str, trainers_skip: TrainersSkip | None
) -> str:
    """Describe the launch, with the numbers that must fit together.

    Args:
        plan: The plan to resume.
        config: The config of the run.
        changes: Number of settings that the launch changes.
        trainer: The trainer's display name.
        trainers_skip: The skip in the trainer's own setting; None if the trainer has no such setting.
    """
    skip = skip_of(plan.data)
    facts = [f"{counted(changes, 'setting')} to change"]
    if config.world_size is not None:
        facts.append(counted(config.world_size, "rank"))
    if skip is not None and skip.global_batch_size is not None:
        facts.append(f"batches of {counted(skip.global_batch_size, 'sample')}")
    repeats = None if skip is None else seen_twice(skip)
    facts.append(_data_summary(plan.data, trainer, trainers_skip))
    return ", ".join([*facts, *([] if repeats is None else [repeats])])


def user_settings_summary(plan: ResumePlan, *, trainer: str) -> str:
    """Describe how the user starts a trainer whose configs ckpttool does not edit, and the effect on the data.

    Args:
        plan: The plan to resume.
        trainer: The trainer's display name.
    """
    settings = (setting for setting in (*plan.load.settings, *plan.load.data) if not setting.is_alternative)
    kinds = dict.fromkeys(where for where, _ in fragment(settings))
    return f"{trainer} loads it through {', '.join(kinds)}; {_data_summary(plan.data, trainer, None)}"


def _data_summary(position: DataPosition, trainer: str, trainers_skip: TrainersSkip | None) -> str:
    match position:
        case GoesOn(unchanged=None):
            return f"data: {_with_conditions(position)}"
        case SkipBatches(batches=0):
            return "data from the beginning"
        case SkipBatches(batches=batches):
            return (
                f"{counted(batches, 'batch', 'batches')} skipped"
                if trainers_skip is None
                else f"{trainers_skip.setting} {trainers_skip.value}"
            )
        case GoesOn(where=None):
            return f"data position counted by {trainer}"
        case GoesOn(where=where):
            return f"data position from {where}"
        case Unknown(why=why):  # pragma: no branch  mypy knows all
            return f"data position unknown: {why}"


def _with_conditions(position: GoesOn) -> str:
    """Describe the effect on the samples, and the conditions for an exact continuation."""
    effect = effect_words(position)
    if not position.exact_if:
        return effect
    conditions = shown("; ".join(position.exact_if))
    return f"{effect} if {conditions}" if position.effect is DataEffect.EXACT else f"{effect}; exact if {conditions}"


def start_summary(start: JudgedStart, plan: ResumePlan) -> str:
    """Describe the result of the current start.

    Args:
        start: The judged start.
        plan: The intended start.
    """
    if not start.is_known:
        return f"unknown: {start.reason}"
    chosen = plan.point.checkpoint
    has_condition = start.only_in is not None and start.takes(chosen.name)
    condition = f", if started in {start.only_in}" if has_condition else ""
    return f"{start.lead}, it {start.deed(chosen)}{condition}"


def disk_summary(need: DiskNeed) -> str:
    """Describe the space that the next saves need, and the free space."""
    files = "" if need.free_files is None else f" and {need.free_files:,} inodes"
    on = "" if need.host is None else f" on {need.host}, which has the least room"
    return (
        f"{counted(need.saves, 'save')} of {in_gib(need.save_bytes)} in {counted(need.save_files, 'file')} each; "
        f"{in_gib(need.free_bytes)}{files} free{on}"
    )
