"""The config that `launch` wrote and the start command, or why it wrote nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.data_position import SkipBatches, skip_of
from ckpttool.core.domain.launch import Fragment, Launch
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import Preflight
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.view import View
from ckpttool.core.render.answers.plan import (
    besides,
    chosen_checkpoint,
    fresh_lines,
    load_it_with,
    lost,
    plan_document,
    plan_table,
    rejections,
    remarks,
    renames,
)
from ckpttool.core.render.answers.position import data_rows, seen_twice
from ckpttool.core.render.answers.resume import fragment
from ckpttool.core.render.escape import shown
from ckpttool.core.render.finding_lines import grouped_findings, pointer
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import Indented, Pairs, line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(answer: Launch | Fragment | Preflight) -> Document:
    """Return `ckpttool/launch/1`; if nothing was written, `ckpttool/plan/1` and the reasons."""
    if isinstance(answer, Fragment):
        return _fragment_document(answer)
    return _launch_document(answer) if isinstance(answer, Launch) else _refusal_document(answer)


def table(answer: Launch | Fragment | Preflight) -> RenderableType:
    """Show the written config, or the reasons against it.

    If there is no checkpoint to resume from, show each rejection.
    """
    if isinstance(answer, Fragment):
        return _fragment_table(answer)
    if isinstance(answer, Launch):
        return _launch_table(answer)
    if isinstance(answer.decision, NoResumePoint) and not isinstance(answer.decision, FreshStart):
        return plan_table(answer.decision, code=answer.exit_code, view=answer.view)
    from ckpttool.core.render.answers import preflight

    return preflight.table(answer)


def _launch_document(launch: Launch) -> Document:
    return {
        "schema": "ckpttool/launch/1",
        "config": launch.output,
        "written": launch.written,
        "dry_run": launch.dry_run,
        "changes": [{"key": change.key, "before": change.before, "after": change.after} for change in launch.changes],
        "command": launch.commands[0],
        "commands": list(launch.commands),
        "folder": launch.folder,
        "plan": plan_document(launch.plan),
    }


def _fragment_document(answer: Fragment) -> Document:
    plan = plan_document(answer.decision)
    if isinstance(answer.decision, FreshStart):
        return _unwritten([], [] if answer.remark is None else [answer.remark], plan)
    if isinstance(answer.decision, NoResumePoint):
        return plan
    load = answer.decision.load
    return _unwritten(fragment((*load.settings, *load.data)), load.remarks, plan)


def _unwritten(settings: Sequence[tuple[str, str]], remarks: Sequence[str], plan: Document) -> Document:
    """Return the document of a start for which no config was written."""
    return {
        "schema": "ckpttool/launch/1",
        "config": None,
        "written": False,
        "changes": [],
        "command": None,
        "commands": [],
        "fragment": [{"where": where, "text": text} for where, text in settings],
        "remarks": list(remarks),
        "plan": plan,
    }


def _fragment_table(answer: Fragment) -> RenderableType:
    """Show the settings for the trainer first, because the user is about to start it."""
    plan = answer.decision
    if isinstance(plan, FreshStart):
        advice = ["Start the training without any setting that loads a checkpoint."]
        advice += [] if answer.remark is None else [f"Without a setting: {shown(answer.remark)}."]
        return stack(*fresh_lines(plan), line(), *map(line, advice))
    if isinstance(plan, NoResumePoint):
        return plan_table(plan, code=answer.exit_code, view=answer.view)
    checkpoint = plan.point.checkpoint
    headline = line(f"To resume from {chosen_checkpoint(plan)}:", style="bold green")
    parts: list[RenderableType] = [headline]
    if checkpoint.renames:
        parts += [line(), *renames(checkpoint)]
    parts += [line(), *load_it_with(plan.load), line(), Pairs(data_rows(plan)), line(), line(lost(plan))]
    parts += rejections("Not chosen:", plan.point.rejected, answer.view)
    findings = besides([*plan.point.findings, *plan.findings])
    return stack(*parts, *grouped_findings(findings, checkpoint.topology.world_size, answer.view), *pointer(findings))


def _new_batches(skip: SkipBatches, step: int | None) -> Iterator[str]:
    """Explain that the number of skipped batches differs from the number trained because the batch size changed."""
    is_plain = not skip.begins_anew and skip.lost_samples == 0
    if is_plain and skip.batches != step and skip.samples is not None and skip.global_batch_size is not None:
        batches = f"{counted(skip.batches, 'batch', 'batches')} of {skip.global_batch_size} samples"
        yield f"Skips {batches}: {counted(skip.samples, 'sample')} were consumed in {step} steps."


def _repeats(skip: SkipBatches) -> Iterator[str]:
    repeats = seen_twice(skip)
    if repeats is not None:
        yield f"{repeats[0].upper()}{repeats[1:]}: only whole batches and sinks can be skipped."


def _about_plan(plan: ResumePlan, view: View) -> list[RenderableType]:
    """Show the data, the rejected checkpoints, the findings and the renames of a resume."""
    skip, point = skip_of(plan.data), plan.point.checkpoint
    parts: list[RenderableType] = []
    texts = [] if skip is None else [*_new_batches(skip, point.step), *_repeats(skip)]
    if texts:
        parts += [line(), line(" ".join(texts))]
    if plan.load.remarks:
        parts += [line(), *remarks(plan.load)]
    if plan.point.rejected:
        parts += [line(), line(lost(plan)), *rejections("Not chosen:", plan.point.rejected, view)]
    parts += grouped_findings(besides(plan.findings), point.topology.world_size, view)
    if point.renames:
        parts += [line(), *renames(point)]
    return parts


def _refusal_document(answer: Preflight) -> Document:
    from ckpttool.core.render.answers.preflight import check_document

    decided = None if answer.decision is None else plan_document(answer.decision)
    plan = decided if isinstance(decided, dict) else {}
    checks = [check_document(check) for check in answer.checks]
    return {**plan, "go": False, "exit_code": answer.exit_code.value, "checks": checks}


def _launch_table(launch: Launch) -> RenderableType:
    """Show the changed settings, then the commands; `resolve` shows the plan itself."""
    commands, target, resumes = launch.commands, shown(launch.output), "starts from scratch"
    plan = launch.chosen
    if plan is not None:
        resumes = f"resumes from {chosen_checkpoint(plan)}"
    if launch.dry_run:
        headline = line(f"Dry run, {target} is not written: it {resumes}")
    elif launch.written:
        headline = line(f"Wrote {target}: {resumes}")
    else:
        headline = line(f"{target} is unchanged: already {resumes}")
    headline.stylize("bold green")
    rows = []
    for change in launch.changes:
        before = "(not set)" if change.before is None else shown(change.before)
        after = "(removed)" if change.after is None else shown(change.after)
        rows.append((change.key, f"{before} -> {after}"))
    parts: list[RenderableType] = [headline, line()]
    parts.append(Pairs(rows) if rows else Indented(line("(the base config already has all of these settings)")))
    if isinstance(launch.plan, FreshStart):
        parts += [line(), *fresh_lines(launch.plan)]
    else:
        parts += _about_plan(launch.plan, launch.view)
    per_node = ", one command per node" if len(commands) > 1 else ""
    parts += [line(), line(f"Start it with{per_node} (in {launch.folder}):", style="bold")]
    # Each command has its own line, unbroken, so that it can be copied.
    return stack(*parts, *(line(command, no_wrap=True) for command in commands))
