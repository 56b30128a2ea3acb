"""Tables for people: the answer first, then why, within 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.data_position import Samples, Stateful, effect_of, skip_of
from ckpttool.domain.finding import Code, Finding, Severity, blocking, seen_in_part, told
from ckpttool.domain.launch import Launch
from ckpttool.domain.plan import NoResumePoint, Rejection, ResumePlan, Simulation, SkipAnswer
from ckpttool.domain.units import counted, on_all
from ckpttool.domain.verdict import Level, VerdictWord
from ckpttool.errors import ExitCode
from ckpttool.render.escape import shown, size
from ckpttool.render.json import world_size
from ckpttool.render.text import Indented, Pairs, stack, whole_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

MOST_FINDINGS = 8
"""Kinds of findings that a table shows; JSON has every single one."""

MOST_REJECTED = 8
"""Rejected checkpoints that a table shows, newest first."""

MOST_REASONS = 3
"""Kinds of reasons shown for each rejected checkpoint."""

NARROW = 60
"""Columns below which a table shows less: the name of a checkpoint must never be what is cut."""

_STYLE = {
    Severity.NOTE: "dim",
    Severity.SUSPECT: "yellow",
    Severity.UNKNOWN: "yellow",
    Severity.DAMAGE: "red",
    Severity.UNSAFE: "bold red",
}
"""Settings that are names of files: one word to whoever copies them, blanks and all."""

_HEALTH_STYLE = {"healthy": "green", "unhealthy": "red", "unknown": "dim"}


def inventory_table(inventory: Inventory) -> RenderableType:
    """Show what `scan` found, newest first."""
    parts: list[RenderableType] = [_inventory_headline(inventory)]
    if inventory.checkpoints:
        parts += [Text(""), _CheckpointTable(inventory)]
    findings = [finding for one in reversed(inventory.checkpoints) for finding in one.findings]
    findings += inventory.findings
    parts += grouped_findings(findings, world_size(inventory))
    return stack(*parts, *pointer(findings))


def _inventory_headline(inventory: Inventory) -> Text:
    if not inventory.checkpoints:
        return Text(f"No checkpoint in {shown(inventory.root)} ({inventory.layout.value})", style="bold red")
    whole = [one for one in inventory.checkpoints if not blocking(one.findings)]
    world = world_size(inventory)
    ranks = "complete" if world in {None, 1} else f"on all {world} ranks"
    which = "newest" if whole and whole[-1] is inventory.checkpoints[-1] else "newest complete"
    newest = f", {which} {shown(whole[-1].name)}" if whole else ""
    answer = f"{counted(len(inventory.checkpoints), 'checkpoint')}, {len(whole)} {ranks}{newest}"
    headline = Text(answer, style="bold green" if len(whole) == len(inventory.checkpoints) else "bold yellow")
    return headline.append(f"\n{shown(inventory.root)} ({inventory.layout.value})", style="dim")


class _CheckpointTable:
    """One line a checkpoint, newest first; on a narrow terminal only what the answer needs."""

    def __init__(self, inventory: Inventory) -> None:
        self._newest_first = inventory.checkpoints[::-1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW
        # Where batch sizes differ steps are no order; one size needs no more than its own column.
        sizes = {one.scalars.global_batch_size for one in self._newest_first} - {None}
        by_samples = ("SAMPLES",) if len(sizes) > 1 else ()
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0) if narrow else (0, 1))
        table.add_column("NAME")
        few = ("STEP", *by_samples, "RANKS")
        for header in few if narrow else ("STEP", "OPT STEP", "RANKS", "SIZE", "GBS", *by_samples):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("HEALTH", no_wrap=True)
        for one in self._newest_first:
            step, ranks = _number(one.step), _ranks(one)
            scalars = one.scalars
            seen = (_number(one.samples),) if by_samples else ()
            middle = (step, _number(scalars.global_step), ranks, size(one.nbytes), _number(scalars.global_batch_size))
            health = Text(one.health.value, style=_HEALTH_STYLE[one.health.value])
            cells = (step, *seen, ranks) if narrow else (*middle, *seen)
            table.add_row(Text(shown(one.name)), *cells, health)
        yield whole_words(table)


def _ranks(checkpoint: Checkpoint) -> Text:
    expected = checkpoint.topology.world_size
    if expected is None:
        return Text("all")
    have = len(checkpoint.ranks)
    return Text(f"{have}/{expected}", style="" if have == expected else "red")


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def plan_table(
    answer: ResumePlan | NoResumePoint, simulation: Simulation | None = None, *, code: ExitCode = ExitCode.OK
) -> RenderableType:
    """Show what `resolve` decided: what to load, what is lost, and why nothing newer.

    Args:
        answer: The decision.
        simulation: What MindFormers would have done.
        code: How the command ends: what is not all well is not green.
    """
    if isinstance(answer, ResumePlan):
        parts = [*_chosen(answer, code), *_rejections("Not chosen:", answer.point.rejected)]
        findings = [*answer.point.findings, *answer.findings]
    else:
        headline = Text(f"Nothing to resume from in {shown(answer.root)}", style="bold red")
        if seen_in_part(answer.findings):
            headline = Text(f"Nobody knows from this machine what {shown(answer.root)} holds", style="bold yellow")
        way_out = [one for one in answer.findings if one.code is Code.RANKS_TO_RESTORE]
        sentences = [Text(shown(f"{one.message[:1].upper()}{one.message[1:]}: {one.remedy}")) for one in way_out]
        if not answer.rejected and not answer.findings:
            sentences = [Text("No checkpoint was saved here: name another folder, or start the training anew")]
        parts = [headline, *sentences, *_rejections("Rejected:", answer.rejected)]
        findings = [one for one in answer.findings if one not in way_out]
    if answer.advice is not None:
        from ckpttool.render.answers.replay import advice_parts

        parts += [Text(""), *advice_parts(answer.advice)]
    if simulation is not None:
        parts += [Text(""), *_simulation(simulation, answer)]
    rejected = answer.point.rejected if isinstance(answer, ResumePlan) else answer.rejected
    reasons = [reason for one in rejected[:MOST_REJECTED] for reason in one.reasons]
    return stack(*parts, *grouped_findings(findings, _world(rejected)), *pointer([*findings, *reasons]))


def _world(rejected: Sequence[Rejection]) -> int | None:
    return rejected[0].checkpoint.topology.world_size if rejected else None


def _chosen(plan: ResumePlan, code: ExitCode) -> list[RenderableType]:
    checkpoint = plan.point.checkpoint
    ranks = checkpoint.topology.world_size
    in_part = seen_in_part(plan.findings)
    here = None if ranks is None else f"on the {counted(ranks, 'rank')} seen here" if in_part else on_all(ranks)
    on = "" if here is None else f" {here}"
    style = "bold yellow" if in_part or code is not ExitCode.OK else "bold green"
    end = "" if code is ExitCode.OK else f" (exit {code.value})"
    headline = Text(f"Resume from {shown(checkpoint.name)}: step {checkpoint.step}, whole{on}{end}", style=style)
    names = {setting.place.name for setting in plan.load.settings if isinstance(setting.value, str)}
    rows = [(key, Text(value, no_wrap=key in names)) for key, value in _settings(plan)]
    parts: list[RenderableType] = [headline, Text(""), Pairs(rows)]
    if checkpoint.renames:
        parts += [Text(""), *_renames(checkpoint)]
    parts += [Text(""), Text(_lost(plan))]
    return parts


def _renames(checkpoint: Checkpoint) -> list[RenderableType]:
    lines = [Text(f"  {shown(one.source)} -> {shown(one.target)}") for one in checkpoint.renames]
    return [Text("First rename, in the checkpoint folder:", style="bold yellow"), *lines]


def _evidence(plan: ResumePlan) -> str:
    if plan.point.evidence is Level.STRUCTURE:
        return "headers and sizes; no tensor data"
    return (
        "every byte read"
        if plan.point.verdict is VerdictWord.VERIFIED
        else "every byte read, no checksum to compare with"
    )


def _settings(plan: ResumePlan) -> list[tuple[str, str]]:
    wanted = (setting for setting in plan.load.settings if not setting.is_default)
    settings = [(setting.place.name, shown(str(setting.value))) for setting in wanted]
    settings += _data_settings(plan)
    settings.append(("health", plan.point.checkpoint.health.value))
    settings.append(("evidence", f"{plan.point.evidence.word}: {plan.point.verdict.value}  ({_evidence(plan)})"))
    return settings


def _data_settings(plan: ResumePlan) -> list[tuple[str, str]]:
    """Spell the settings of the data, each with what it means here."""
    if isinstance(plan.data, Stateful):
        detail = "from the state files of the streaming data, whatever the settings say"
        return [("data position", f"{shown(plan.data.where)}  ({detail}; next step {plan.next_step})")]
    skip = skip_of(plan.data)
    if skip is None:
        return [("data position", f"{effect_of(plan.data).value}  (next step {plan.next_step})")]
    again = (
        f"{counted(skip.repeated_samples, 'sample')} seen twice" if skip.repeated_samples else "no sample seen twice"
    )
    if skip.repeated_samples is None:
        again = "less than a sink seen twice"
    batch = f" of {skip.global_batch_size} samples" if skip.global_batch_size is not None else ""
    place = f"batches{batch}" if skip.batches else "data from its beginning"
    detail = f"  ({place}; next step {plan.next_step}; {again})"
    # Where the trainer counts by itself nothing need be set: then this is what that comes to, the number first.
    wanted = [setting for setting in plan.load.data if not setting.is_default or isinstance(plan.data, Samples)]
    rows = [
        (setting.place.name, str(skip.batches if setting.value is None else setting.value))
        for setting in sorted(wanted, key=lambda setting: isinstance(setting.value, bool))
    ]
    (name, value), *rest = rows or [("data position", f"skip {skip.batches}")]
    return [(name, value + detail), *rest]


def _lost(plan: ResumePlan) -> str:
    lost, rejected = plan.point.lost_steps, plan.point.rejected
    if any(one.checkpoint.step is None for one in rejected):
        return f"At least {counted(lost, 'step')} to be done again: something newer does not tell its step."
    if not lost:  # what was trained since the newest save, no save can tell
        on_course = [one for one in rejected if all(why.code is not Code.ABANDONED_BRANCH for why in one.reasons)]
        course = " on this course" if rejected else ""
        return "What was passed over is no further." if on_course else f"Nothing newer{course} was passed over."
    sizes = {one.scalars.global_batch_size for one in (plan.point.checkpoint, *(one.checkpoint for one in rejected))}
    samples = f" ({counted(plan.point.lost_samples or 0, 'sample')})" if len(sizes - {None}) > 1 else ""
    return f"{counted(lost, 'step')} to be done again{samples}."


def _rejections(title: str, rejected: Sequence[Rejection]) -> list[RenderableType]:
    if not rejected:
        return []
    parts: list[RenderableType] = [Text(""), Text(title, style="bold")]
    said: set[str] = set()
    for one in rejected[:MOST_REJECTED]:
        step = "unknown" if one.checkpoint.step is None else str(one.checkpoint.step)
        parts.append(Text(f"  {shown(one.checkpoint.name)} (step {step})"))
        for kind in _kinds(one.reasons)[:MOST_REASONS]:
            parts += _told(kind, one.checkpoint.topology.world_size, said, by=4)
    if len(rejected) > MOST_REJECTED:
        parts.append(Text(f"  and {len(rejected) - MOST_REJECTED} more: --format json", style="dim"))
    return parts


def _kinds(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings of the same code, gravest first: 500 lost shards are one line."""
    groups: dict[Code, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: -finding.severity):
        groups.setdefault(finding.code, []).append(finding)
    return list(groups.values())


def _told(kind: Sequence[Finding], world: int | None, said: set[str], *, by: int = 0) -> Iterator[RenderableType]:
    """Show the first finding of a kind, all ranks that have it, and what to do, unless that was said just above."""
    yield Indented(_finding(kind, world), by)
    remedy = kind[0].remedy
    if remedy is not None and kind[0].severity > Severity.NOTE and remedy not in said:
        said.add(remedy)
        yield Indented(Text(f"try: {shown(remedy)}", style="dim"), by + 2)


def _simulation(simulation: Simulation, answer: ResumePlan | NoResumePoint) -> Iterable[RenderableType]:
    ours = answer.point.checkpoint.name if isinstance(answer, ResumePlan) else None
    pick = simulation.would_resume
    same = "the same" if pick is not None and pick == ours else (shown(pick) if pick else "nothing sound")
    yield Text(f"MindFormers {shown(simulation.version)} by itself would take: {same}", style="bold")
    yield Indented(Text(shown(simulation.because)))


def grouped_findings(findings: Sequence[Finding], world: int | None = None) -> list[RenderableType]:
    """Show findings, gravest first, those of a code together, and beside each what to do.

    Args:
        findings: In any order.
        world: Ranks that there are, where that is known.
    """
    if not findings:
        return []
    kinds, said = _kinds(findings), set[str]()
    parts: list[RenderableType] = [Text("")]
    for kind in kinds[:MOST_FINDINGS]:
        parts += _told(kind, world, said)
    if len(kinds) > MOST_FINDINGS:
        parts.append(Text(f"and {len(kinds) - MOST_FINDINGS} other kinds: --format json", style="dim"))
    return parts


_SUMS_UP = frozenset({Code.NOTHING_TO_RESUME})
"""What says no more than the headline."""


def pointer(findings: Iterable[Finding]) -> list[RenderableType]:
    """Say where more is told of the gravest finding, if any weighs something."""
    gravest = max(findings, key=lambda finding: (finding.severity, finding.code not in _SUMS_UP), default=None)
    if gravest is None or gravest.severity is Severity.NOTE:
        return []
    return [Text(""), Text(f"What it means: ckpttool explain {gravest.code.value}", style="dim")]


def _finding(kind: Sequence[Finding], world: int | None) -> Text:
    finding, message = kind[0], shown(told(kind, world))
    text = Text(finding.severity.word, style=_STYLE[finding.severity])
    text.append(f" {finding.code.value}", style="bold")
    where = shown(finding.path) if finding.path else ""
    line = f":{finding.line}" if finding.line is not None else ""
    text.append(f" {where}{line}: {message}" if where else f" {message}", style="")
    return text


def skip_table(answer: SkipAnswer) -> RenderableType:
    """Show what `scale-skip` computed."""
    skip = answer.skip
    headline = Text(f"data_skip_steps: {skip.batches}", style="bold green")
    if skip.batches == 0:
        headline = Text("ignore_data_skip: True", style="bold green")
        headline.append("  (data_skip_steps: 0 would mean 'unset' to MindFormers)", style="dim")
    old = f" of {answer.old_global_batch} samples" if answer.old_global_batch is not None else " of several sizes"
    new = f" of {skip.global_batch_size} samples" if skip.global_batch_size is not None else ""
    before, after = (counted(number, "batch", "batches") for number in (answer.steps, skip.batches))
    lines = [f"{before}{old} = {counted(skip.samples or 0, 'sample')} = {after}{new}"]
    if skip.repeated_samples:
        lines.append(f"{counted(skip.repeated_samples, 'sample')} left over: seen twice, none lost")
    if skip.sink_size is not None:
        lines.append(f"rounded down to whole sinks of {skip.sink_size} batches, as MindSpore does")
    if answer.exact_sizes:
        lines.append(f"exact with a global batch size of {' or '.join(map(str, answer.exact_sizes))}")
    return stack(headline, Text(""), *(Indented(Text(line)) for line in lines))


def launch_table(launch: Launch) -> RenderableType:
    """Show what `launch` wrote: the settings it changed; the commands follow it, the plan itself is `resolve`'s."""
    point, commands = launch.plan.point.checkpoint, launch.commands
    target, resumes = shown(launch.output), f"resumes from {shown(point.name)}, step {point.step}"
    headline = Text(f"Wrote {target}: {resumes}" if launch.written else f"{target} stays as it is: {resumes} already")
    headline.stylize("bold green")
    rows = []
    for change in launch.changes:
        before = "(not set)" if change.before is None else shown(change.before)
        after = "(removed)" if change.after is None else shown(change.after)
        rows.append((change.key, f"{before} -> {after}"))
    parts: list[RenderableType] = [headline, Text("")]
    parts.append(Pairs(rows) if rows else Indented(Text("(the base config says all of it already)")))
    if launch.plan.point.rejected:
        parts += [Text(""), Text(_lost(launch.plan)), *_rejections("Not chosen:", launch.plan.point.rejected)]
    parts += grouped_findings(launch.plan.findings)
    if point.renames:
        parts += [Text(""), *_renames(point)]
    parts += [Text(""), Text("Start it with:" if len(commands) == 1 else "Start it with, one node each:", style="bold")]
    return stack(*parts)
