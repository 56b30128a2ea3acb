"""The answer of `resolve`: the checkpoint to load, the steps to redo, and the reasons against newer checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, seen_in_part, summary_of, withheld
from ckpttool.core.domain.load_settings import LoadSettings, PlaceKind
from ckpttool.core.domain.plan import (
    MOST_REJECTED,
    FreshStart,
    NoResumePoint,
    Outcome,
    Rejection,
    Resolution,
    ResumePlan,
    ResumePoint,
    Simulation,
)
from ckpttool.core.domain.units import counted, on_all, step_and_name
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode
from ckpttool.core.render.answers.inventory import age, minute, rename_document, saved_at, unconfirmed
from ckpttool.core.render.answers.position import data_document, data_rows, position_document
from ckpttool.core.render.answers.resume import fragment, load_document, yaml_block
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document, finding_document, parts_document

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_REASONS = 3
"""Kinds of reasons shown for each rejected checkpoint."""


def document(answer: Resolution) -> Document:
    """Return `ckpttool/plan/1`, the answer of `resolve`."""
    return plan_document(answer.decision, answer.simulation)


def table(answer: Resolution) -> RenderableType:
    """Render the answer from `resolve`."""
    code = answer.exit_code
    return plan_table(answer.decision, answer.simulation, code=code, view=answer.view, now=answer.now)


def yaml(answer: Resolution) -> str:
    """Return the settings as YAML to paste, with all other facts as comments."""
    plan = answer.decision
    if isinstance(plan, FreshStart):
        return f"# {fresh_headline(plan)}"
    if isinstance(plan, NoResumePoint):
        reason = "nothing" if plan.is_sure else "it is unknown which checkpoint"
        return f"# {reason} to resume from in {shown(plan.root)}: ckpttool resolve shows why"
    checkpoint = plan.point.checkpoint
    remarks = [f"ckpttool: resume from {step_and_name(checkpoint.step, checkpoint.name)}", lost(plan)]
    remarks += [f"{name}: {value}" for name, value in facts_besides_settings(plan)]
    if not plan.load.data:  # otherwise it is one of the settings
        remarks += [f"{name}: {value}" for name, value in data_rows(plan)]
    grave = blocking((*plan.point.findings, *plan.findings))
    remarks += [f"{finding.severity.word} {finding.code.value}: {finding.message}" for finding in grave]
    return yaml_block(plan, remarks)


def plan_document(answer: ResumePlan | NoResumePoint, simulation: Simulation | None = None) -> Document:
    """Return the document of a decision, with the trainer's own choice."""
    point = answer.point if isinstance(answer, ResumePlan) else answer
    document: dict[str, Document] = {
        "schema": "ckpttool/plan/1",
        "root": answer.root,
        "evidence": point.evidence.word,
        "resume": None,
        "data": None,
        "load": None,
        "position": None,
        "lost_steps": None,
        "lost_samples": None,
        "lost_seconds": None,
        "lost_seconds_source": None,
    }
    findings = answer.findings
    if isinstance(answer, FreshStart):
        document |= {"start": "scratch", "set_aside": [*answer.set_aside]}
    elif isinstance(answer, ResumePlan) and answer.or_start:
        document["start"] = "resume"
    if isinstance(answer, ResumePlan):
        document["resume"] = _resume(answer)
        document["data"] = data_document(answer)
        document["load"] = load_document(answer.load)
        document["position"] = position_document(answer.data)
        document["lost_steps"] = answer.point.lost_steps
        document["lost_samples"] = answer.point.lost_samples
        document |= lost_time_document(answer.point)
        findings = (*answer.point.findings, *answer.findings)
        if answer.placement:
            document["placement"] = [{"ranks": [*placed.ranks], "host": placed.host} for placed in answer.placement]
        if answer.copies:
            document["copy"] = [*answer.copies]
    document["rejected"] = [_rejection(rejection) for rejection in point.rejected]
    document["findings"] = [finding_document(finding) for finding in findings]
    document |= parts_document(answer.parts)
    if answer.advice is not None:
        from ckpttool.core.render.answers.advice import advice_document

        document["advice"] = advice_document(answer.advice)
    if simulation is not None:
        pick: dict[str, Document] = {
            "version": simulation.version,
            "would_resume": simulation.would_resume,
            "because": simulation.because,
        }
        document["simulation"] = {"trainer": simulation.trainer, **pick, "outcome": simulation.outcome.value}
        if simulation.older is not None:
            document[simulation.older] = pick
    return document


def _resume(plan: ResumePlan) -> Document:
    checkpoint = plan.point.checkpoint
    facts = dict(checkpoint.facts)
    return {
        "name": checkpoint.name,
        "run": checkpoint.run,
        "step": checkpoint.step,
        "optimizer_step": facts.get("optimizer_step"),
        "epoch": facts.get("epoch"),
        "global_batch_size": checkpoint.scalars.global_batch_size,
        "samples": checkpoint.samples,
        "world_size": checkpoint.topology.world_size,
        "saved_at": saved_at(plan.point.saved_ns),
        "health": checkpoint.health.value,
        "verdict": plan.point.verdict.value,
        **{name: plan.load.value(place) for name, place in plan.load.older},
        "renames": [rename_document(rename) for rename in checkpoint.renames],
    }


def lost_time_document(point: ResumePoint) -> dict[str, Document]:
    """Return the duration of the lost steps, in whole seconds; 0 if no steps are lost."""
    took = point.lost_time
    if took is None:
        is_none = not point.lost_steps and not point.may_lose_more
        return {"lost_seconds": 0 if is_none else None, "lost_seconds_source": None}
    return {"lost_seconds": round(took.seconds), "lost_seconds_source": took.source.value}


def _rejection(rejection: Rejection) -> Document:
    return {
        "name": rejection.checkpoint.name,
        "run": rejection.checkpoint.run,
        "step": rejection.checkpoint.step,
        "samples": rejection.checkpoint.samples,
        "reasons": [finding_document(reason) for reason in rejection.reasons],
    }


def plan_table(
    answer: ResumePlan | NoResumePoint,
    simulation: Simulation | None = None,
    *,
    code: ExitCode = ExitCode.OK,
    view: View = USUAL,
    now: float | None = None,
) -> RenderableType:
    """Show a decision: the checkpoint to load, the steps to redo, and the reasons against newer checkpoints.

    Args:
        answer: The decision.
        simulation: The trainer's own choice.
        code: Exit code of the command; the headline is green only if the code is 0.
        view: How much to show.
        now: Seconds since 1970, for the age of the chosen checkpoint; None if the age is not shown.
    """
    from ckpttool.core.render.finding_lines import grouped_findings, pointer
    from ckpttool.core.render.text import line, stack

    if isinstance(answer, FreshStart):
        return stack(*fresh_lines(answer))
    if isinstance(answer, ResumePlan):
        parts = [*_chosen(answer, code, now), *rejections("Not chosen:", answer.point.rejected, view)]
        findings = [*answer.point.findings, *answer.findings]
    else:
        unsure = code is ExitCode.INCOMPLETE or seen_in_part(answer.findings)
        headline = line(refusal(answer, code), style="bold yellow" if unsure else "bold red")
        parts = [headline, *map(line, remedies_of(answer, view)), *rejections("Rejected:", answer.rejected, view)]
        findings = [finding for finding in answer.findings if finding.code is not Code.RANKS_TO_RESTORE]
    if answer.advice is not None:
        from ckpttool.core.render.answers.advice import advice_parts

        parts += [line(), *advice_parts(answer.advice)]
    if simulation is not None:
        parts += [line(), *_simulation(simulation, answer)]
        findings = [finding for finding in findings if not _repeats(finding, simulation)]
    rejected = answer.point.rejected if isinstance(answer, ResumePlan) else answer.rejected
    findings = besides(findings)
    reasons = [reason for rejection in rejected[:MOST_REJECTED] for reason in rejection.reasons]
    return stack(*parts, *grouped_findings(findings, _world(rejected), view), *pointer([*findings, *reasons]))


def fresh_headline(start: FreshStart) -> str:
    """Return one line that says that the run starts from scratch, and why."""
    return f"Start from scratch: {shown(start.root)} {start.ground}, and nothing shows an earlier save"


def fresh_lines(start: FreshStart) -> list[RenderableType]:
    """Show a start from scratch, with the unfinished save that is not loaded and the logs that were read."""
    from ckpttool.core.render.text import line

    lines: list[RenderableType] = [line(fresh_headline(start), style="bold green")]
    if start.set_aside:
        names = shown(", ".join(start.set_aside))
        lines.append(line(f"Not loaded: {names}, which its trainer did not finish; the run may overwrite it"))
    if start.logged:
        lines.append(line(f"Read: {counted(len(start.logged), 'log')}, which ends before the first save"))
    if start.is_uncounted:
        lines.append(
            line("Not counted by --after-failed-starts: it counts only starts from a checkpoint, so limit these")
        )
    return lines


def besides(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that are not already shown as the remedy of a rejection."""
    return [finding for finding in findings if finding.code is not Code.CAN_BE_HEALED]


def refusal(answer: NoResumePoint, code: ExitCode) -> str:
    """Return one line that says that there is nothing to resume from, or that this is unknown."""
    root = shown(answer.root)
    if seen_in_part(answer.findings):
        return f"This machine alone does not show which checkpoint in {root} to resume from"
    if code is ExitCode.INCOMPLETE:
        return _unknown(
            [*answer.findings, *(reason for rejection in answer.rejected for reason in rejection.reasons)], root
        )
    if answer.is_named:
        named = answer.rejected[0].checkpoint
        return f"Cannot resume from {step_and_name(named.step, shown(named.name))}"
    return f"Nothing to resume from in {root}"


def _unknown(reasons: Sequence[Finding], root: str) -> str:
    """Return one line that says why the checkpoint to resume from is unknown."""
    codes = {reason.code for reason in reasons if reason.severity is Severity.UNKNOWN}
    if withheld(reasons):
        return f"Checkpoints in {root} that may be intact could not be read: which one to resume from is unknown"
    if any(reason.is_tie for reason in reasons):
        return f"Two saves disagree, and it is unknown which one is right: no checkpoint in {root} was chosen"
    if Code.RUN_MIXED in codes:
        return f"Two runs saved in {root}, and which one to resume is unknown: name a checkpoint with --checkpoint"
    if codes & {Code.STEP_UNKNOWN, Code.STEP_DISAGREES, Code.DUPLICATE_CHECKPOINT}:
        return f"It is unknown which checkpoint in {root} is the newest: no step is certain"
    if Code.ABANDONED_BRANCH in codes:
        return (
            f"It is unknown which checkpoint in {root} to resume from: those that may be intact are on an "
            "abandoned branch"
        )
    return f"ckpttool does not know how to load the intact checkpoints in {root}"


def remedies_of(answer: NoResumePoint, view: View) -> list[str]:
    """Return the remedies for when there is nothing to resume from, one sentence each."""
    restores = [finding for finding in answer.findings if finding.code is Code.RANKS_TO_RESTORE]
    sentences = [f"{summary_of([restore], view=view)}: {restore.remedy}" for restore in restores]
    if answer.where_else:
        sentences.append(answer.where_else)
    elif not answer.rejected and not answer.findings:
        sentences = ["No checkpoint was saved here: name another folder, or start the training from scratch"]
    return [shown(f"{sentence[:1].upper()}{sentence[1:]}") for sentence in sentences]


def _world(rejected: Sequence[Rejection]) -> int | None:
    return rejected[0].checkpoint.topology.world_size if rejected else None


def _chosen(plan: ResumePlan, code: ExitCode, now: float | None) -> list[RenderableType]:
    from ckpttool.core.render.text import Pairs, line

    checkpoint = plan.point.checkpoint
    in_part = seen_in_part(plan.findings)
    style = "bold yellow" if in_part or code is not ExitCode.OK else "bold green"
    end = "" if code is ExitCode.OK else f" (exit {code.value})"
    headline = line(f"Resume from {chosen_checkpoint(plan)}: {intact_on(plan)}{end}", style=style)
    # A file name is one word for copying, even with blanks.
    names = {setting.place.name for setting in plan.load.settings if isinstance(setting.value, str)}
    rows = [(key, line(value, no_wrap=key in names)) for key, value in _settings(plan)]
    if (written := minute(plan.point.saved_ns)) is not None:
        since = None if now is None else age(plan.point.saved_ns, now)
        rows.append(("saved", line(f"{written} UTC" if since is None else f"{written} UTC, {since} ago")))
    warning = None if in_part else unconfirmed(checkpoint, "--config or --world-size")
    parts: list[RenderableType] = [headline, *([] if warning is None else [line(warning)]), line(), Pairs(rows)]
    if checkpoint.renames:
        parts += [line(), *renames(checkpoint)]
    if not _stands_in_config(plan.load):
        parts += [line(), *load_it_with(plan.load)]
    elif plan.load.remarks:
        parts += [line(), *remarks(plan.load)]
    if plan.copies:
        parts += [line(), line(_copied_first(plan))]
    parts += [line(), line(lost(plan))]
    return parts


def _copied_first(plan: ResumePlan) -> str:
    files = counted(len(plan.copies), "file")
    return f"A trainer loads from a disk: first copy {files} of {shown(plan.root)} (--format json lists them in `copy`)"


def chosen_checkpoint(plan: ResumePlan) -> str:
    """Name the chosen checkpoint: `step 60 (_1-30_2)`."""
    return step_and_name(plan.point.step, shown(plan.point.checkpoint.name))


def intact_on(plan: ResumePlan) -> str:
    """Return the number of ranks on which the chosen checkpoint is intact: `intact on all 4 ranks`."""
    ranks = plan.point.checkpoint.topology.world_size
    if ranks is None:
        return "intact"
    if seen_in_part(plan.findings):
        return f"intact on the {counted(ranks, 'rank')} seen here"
    return f"intact {on_all(ranks)}"


def _stands_in_config(load: LoadSettings) -> bool:
    """Return whether every setting belongs in the trainer's config, so that the names of the keys suffice."""
    return all(setting.place.kind is PlaceKind.CONFIG for setting in (*load.settings, *load.data))


def load_it_with(load: LoadSettings) -> list[RenderableType]:
    """Show the settings that make a trainer load exactly this checkpoint, with their locations, ready to copy."""
    from ckpttool.core.render.text import Pairs, line

    # Each text has its own line, unbroken, so that it can be copied.
    rows = [(place, line(text, no_wrap=True)) for place, text in fragment((*load.settings, *load.data))]
    return [line("Load it with:", style="bold"), Pairs(rows), *remarks(load)]


def remarks(load: LoadSettings) -> list[RenderableType]:
    """Show the additional notes for the start."""
    from ckpttool.core.render.text import Indented, line

    return [Indented(line(shown(remark))) for remark in load.remarks]


def renames(checkpoint: Checkpoint) -> list[RenderableType]:
    """Show the files to rename before the launch."""
    from ckpttool.core.render.text import line

    lines = [line(f"  {shown(rename.source)} -> {shown(rename.target)}") for rename in checkpoint.renames]
    return [line("First rename, in the checkpoint folder:", style="bold yellow"), *lines]


def _evidence(plan: ResumePlan) -> str:
    if not plan.point.evidence.reads_content:
        return "headers and sizes; no tensor data"
    if plan.point.verdict is VerdictWord.AGREED:
        return "every byte read, copies on other ranks agree"
    return (
        "every byte read"
        if plan.point.verdict is VerdictWord.VERIFIED
        else "every byte read, no checksum to compare with"
    )


def _settings(plan: ResumePlan) -> list[tuple[str, str]]:
    changed = [setting for setting in plan.load.settings if not setting.is_default]
    settings = [(setting.place.name, shown(str(setting.value))) for setting in changed if _stands_in_config(plan.load)]
    settings += data_rows(plan)
    return [*settings, *facts_besides_settings(plan)]


def facts_besides_settings(plan: ResumePlan) -> list[tuple[str, str]]:
    """Return the facts about the checkpoint that are not settings of the trainer."""
    evidence = f"{plan.point.evidence.word}: {plan.point.verdict.value}  ({_evidence(plan)})"
    return [("health", plan.point.checkpoint.health.value), ("evidence", evidence)]


def _is_a_mere_name(why: Finding) -> bool:
    return why.code is Code.STEP_DISAGREES and why.severity is Severity.UNKNOWN


def lost(plan: ResumePlan) -> str:
    """Return the number of steps to redo."""
    lost, rejected = plan.point.lost_steps, plan.point.rejected
    if plan.point.may_lose_more:
        cost = f"At least {counted(lost, 'step')} to redo" if lost else "How many steps to redo is unknown"
        if plan.point.unlisted:
            return f"{cost}: {shown(plan.point.unlisted[0])} cannot be read."
        return f"{cost}: the step of a skipped checkpoint is unknown."
    if not lost:  # no checkpoint shows any training after the newest one
        on_course = [
            rejection
            for rejection in rejected
            if all(why.code is not Code.ABANDONED_BRANCH for why in rejection.reasons)
        ]
        if any(_is_a_mere_name(why) for rejection in on_course for why in rejection.reasons):
            return "Whether a skipped checkpoint is further along is unknown."
        lineage = " on this lineage" if rejected else ""
        return "No skipped checkpoint is further along." if on_course else f"No newer checkpoint{lineage} was skipped."
    checkpoints = [plan.point.checkpoint, *(rejection.checkpoint for rejection in rejected)]
    sizes = {checkpoint.scalars.global_batch_size for checkpoint in checkpoints}
    samples = f" ({counted(plan.point.lost_samples or 0, 'sample')})" if len(sizes - {None}) > 1 else ""
    return f"{counted(lost, 'step')} to redo{samples}{about(plan.point)}."


def about(point: ResumePoint) -> str:
    """Return the duration of the lost steps with its source; empty if it is unknown."""
    return "" if point.lost_time is None else f", about {point.lost_time.words}"


def rejections(title: str, rejected: Sequence[Rejection], view: View) -> list[RenderableType]:
    """Show the newest rejected checkpoints with their most severe reasons, or all of them with all reasons.

    Args:
        title: The heading.
        rejected: The rejected checkpoints, newest first.
        view: The amount to show.
    """
    if not rejected:
        return []
    from ckpttool.core.render.finding_lines import kind_parts, kinds_of
    from ckpttool.core.render.text import line

    parts: list[RenderableType] = [line(), line(title, style="bold")]
    most, most_reasons = (len(rejected), None) if view.everything else (MOST_REJECTED, MOST_REASONS)
    for rejection in rejected[:most]:
        checkpoint = rejection.checkpoint
        parts.append(line(f"  {step_and_name(checkpoint.step, shown(checkpoint.name))}"))
        kinds, messages = kinds_of(rejection.reasons, view), set[str]()
        for kind in kinds[:most_reasons]:
            parts += kind_parts(kind, checkpoint.topology.world_size, messages, view, by=4)
        if len(kinds) > len(kinds[:most_reasons]):
            parts.append(line(f"    and {counted(len(kinds) - MOST_REASONS, 'other kind')}: -v", style="dim"))
    if len(rejected) > most:
        parts.append(line(f"  and {len(rejected) - most} more: -v", style="dim"))
    return parts


def _simulation(simulation: Simulation, answer: ResumePlan | NoResumePoint) -> Iterable[RenderableType]:
    from ckpttool.core.render.text import Indented, line

    ours = answer.point.checkpoint.name if isinstance(answer, ResumePlan) else None
    pick = simulation.would_resume
    title = simulation.title if simulation.version is None else f"{simulation.title} {shown(simulation.version)}"
    then = _THEN[simulation.outcome]
    if pick is None:
        deed = then or "load: unknown"
    else:
        verb = "load" if simulation.outcome is Outcome.LOADS else "choose"
        deed = f"{verb}: {'the same checkpoint' if pick == ours else shown(pick)}{f', and {then}' if then else ''}"
    yield line(f"On its own, {title} would {deed}", style="bold")
    yield Indented(line(shown(simulation.because)))


def _repeats(finding: Finding, simulation: Simulation) -> bool:
    """Return whether a note on the start only repeats the simulation above it."""
    is_note_on_start = finding.code is Code.START_DIFFERS and finding.severity is Severity.NOTE
    return is_note_on_start and finding.message.endswith(f": {simulation.because}")


_THEN = {
    Outcome.LOADS: "",
    Outcome.STOPS: "stop",
    Outcome.SCRATCH: "start from random weights",
    Outcome.MIXES: "load parts of several saves",
    Outcome.UNKNOWN: "",
}
