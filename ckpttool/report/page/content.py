"""The contents of a page in reading order, independent of HTML or Markdown. All texts are unescaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding, Row, Severity, summary_of
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import NoteKind
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePlan
from ckpttool.core.domain.units import Rank, counted, lasting, moment_if_any, on_ranks, step_and_name
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.errors import ExitCode
from ckpttool.core.render.answers.inventory import age, minute, to_the_minute, unconfirmed
from ckpttool.core.render.answers.plan import (
    chosen_checkpoint,
    facts_besides_settings,
    intact_on,
    lost,
    refusal,
    remedies_of,
)
from ckpttool.core.render.answers.position import data_rows
from ckpttool.core.render.answers.resume import fragment
from ckpttool.core.render.escape import shown, size
from ckpttool.postflight.model.answers import Outcome, Postflight
from ckpttool.report.model import TreeReport


class Tone(str, Enum):
    """The tone of a value: good, doubtful, bad or plain."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The answer, at the top of the page."""

    tone: Tone
    word: str
    """The answer in one or two words."""
    headline: str
    sentences: tuple[str, ...]
    passed: tuple[tuple[str, str], ...]
    """Newer checkpoints that were not chosen, as pairs of step with name and reason, newest first."""
    more_passed: int
    """Number of newer checkpoints that `passed` omits."""
    facts: tuple[tuple[str, str], ...] = ()
    load: tuple[tuple[str, str], ...] = ()
    """Settings for the trainer, as pairs of a description of the place and a text to copy."""
    first: tuple[tuple[str, str], ...] = ()
    """Files to rename first, as pairs of old and new name."""
    more_first: int = 0
    """Number of renames that `first` omits."""
    remarks: tuple[str, ...] = ()


def lead(report: TreeReport) -> Lead:
    """Summarize the answer of `resolve`."""
    answer, code = report.resolution.decision, report.resolution.exit_code
    rejected = _rejected(report)
    passed = tuple((_named(rejection.checkpoint), _why(rejection)) for rejection in rejected[:_MOST_PASSED])
    if isinstance(answer, NoResumePoint):
        unsure = code is ExitCode.INCOMPLETE
        return Lead(
            tone=Tone.DOUBT if unsure else Tone.BAD,
            word="Unknown" if unsure else "Stop here",
            headline=refusal(answer, code).removesuffix(f" in {shown(answer.root)}"),  # it is above the answer
            sentences=tuple(remedies_of(answer, report.resolution.view)),
            passed=passed,
            more_passed=len(rejected) - len(passed),
        )
    checkpoint, is_intact = answer.point.checkpoint, intact_on(answer)
    warning = unconfirmed(checkpoint, "--config or --world-size")
    grouped: dict[str, list[str]] = {}
    load = answer.load if report.loaded_from is None else answer.load.at(report.loaded_from)
    for kind, text in fragment((*load.settings, *load.data)):
        grouped.setdefault(kind, []).append(shown(text))
    return Lead(
        tone=Tone.GOOD if code is ExitCode.OK else Tone.DOUBT,
        word="Good to resume from" if code is ExitCode.OK else f"Check before you resume (exit {code.value})",
        headline=f"Resume from {chosen_checkpoint(answer)}",
        sentences=tuple(filter(None, (f"{is_intact[:1].upper()}{is_intact[1:]}.", lost(answer), warning))),
        passed=passed,
        more_passed=len(rejected) - len(passed),
        facts=tuple(_facts(answer, report)),
        load=tuple((_unknown_at(kind), "\n".join(texts)) for kind, texts in grouped.items()),
        first=tuple((shown(rename.source), shown(rename.target)) for rename in answer.load.first[:_MOST_RENAMES]),
        more_first=max(0, len(answer.load.first) - _MOST_RENAMES),
        remarks=tuple(map(shown, answer.load.remarks)),
    )


def _named(checkpoint: Checkpoint) -> str:
    return step_and_name(checkpoint.step, shown(checkpoint.name))


_TOLD_AT = {
    "first write": "First write",
    "environment": "Set in the environment",
    "arguments": "Start with the arguments",
    "config": "Set in the config",
    "code": "Set in the code",
}
"""Labels by the key that `fragment` uses."""


def _unknown_at(kind: str) -> str:
    told_at = _TOLD_AT[kind.removeprefix("or ")]
    return f"Or {told_at[:1].lower()}{told_at[1:]}" if kind.startswith("or ") else told_at


_MOST_RENAMES = 20
"""Maximum number of renames to list, because thousands of ranks may need one each."""

_MOST_PASSED = 4
"""Maximum number of rejected checkpoints in the answer. The table lists all of them."""


def _why(rejection: Rejection) -> str:
    """Summarize the reasons for rejecting a checkpoint, most severe first, as in `damaged on ranks 30-31 of 48`."""
    grave: dict[Row, list[Finding]] = {}
    for reason in sorted(rejection.reasons, key=lambda reason: -reason.severity):
        if reason.severity > Severity.NOTE:
            grave.setdefault(reason.code, []).append(reason)
    return "; ".join(shown(_in_short(reasons)) for reasons in grave.values())


def _in_short(reasons: Sequence[Finding]) -> str:
    ranks = sorted({rank for reason in reasons for rank in reason.ranks})
    if not ranks:
        return summary_of(reasons)
    title = reasons[0].code.headline
    return f"{title[:1].lower()}{title[1:]} ({on_ranks(ranks)})"


def _facts(plan: ResumePlan, report: TreeReport) -> Iterator[tuple[str, str]]:
    written = minute(plan.point.saved_ns)
    if written is not None:
        since = None if report.resolution.now is None else age(plan.point.saved_ns, report.resolution.now)
        yield "saved", f"{written} UTC" if since is None else f"{written} UTC, {since} before this page"
    above = {setting.split(":")[0] for _, setting in fragment(plan.load.data)}
    for name, value in data_rows(plan):
        note = value.partition("  (")[2]
        if name not in above:
            yield name, value
        elif note:
            yield "data", note.removesuffix(")")
    yield from facts_besides_settings(plan)
    simulation = report.resolution.simulation
    if simulation is not None:
        pick = "no single checkpoint" if simulation.would_resume is None else shown(simulation.would_resume)
        yield f"{simulation.title} on its own", f"{pick}: {shown(simulation.because)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint, shown on one line."""

    checkpoint: Checkpoint
    name: str
    step: str
    saved: str
    size: str
    verdict: str
    tone: Tone
    """The tone of the verdict."""
    health: str
    health_tone: Tone
    fate: str
    """`resume here`, or why the checkpoint was skipped. Empty if it was not considered."""
    is_chosen: bool
    findings: tuple[Finding, ...]


_TONE = {
    VerdictWord.VERIFIED: Tone.GOOD,
    VerdictWord.AGREED: Tone.GOOD,
    VerdictWord.STRUCT_OK: Tone.GOOD,
    VerdictWord.MISSING: Tone.BAD,
    VerdictWord.DAMAGED: Tone.BAD,
    VerdictWord.UNSAFE: Tone.BAD,
}
_HEALTH_TONE = {Health.HEALTHY: Tone.GOOD, Health.UNHEALTHY: Tone.BAD, Health.UNKNOWN: Tone.PLAIN}


def saves(report: TreeReport) -> list[Save]:
    """Return all checkpoints, newest first."""
    decision = report.resolution.decision
    chosen = decision.point.checkpoint.key if isinstance(decision, ResumePlan) else None
    rejected = {rejection.checkpoint.key: rejection for rejection in _rejected(report)}
    inventory = report.verification.inventory
    by_key = {checkpoint.key: checkpoint for checkpoint in inventory.checkpoints}
    judged = {
        checkpoint.key: judgement.health
        for checkpoint, judgement in zip(inventory.checkpoints, report.health.report.judgements, strict=True)
    }
    rows = []
    for verdict in report.verification.verdicts:
        checkpoint = by_key[verdict.key]
        health, verdict_word = judged[verdict.key], verdict.word
        rows.append(
            Save(
                checkpoint=checkpoint,
                name=shown(checkpoint.name),
                step="?" if checkpoint.step is None else f"{checkpoint.step:,}",
                saved=minute(checkpoint.saved_ns) or "?",
                size=size(checkpoint.nbytes),
                verdict="incomplete" if verdict_word is VerdictWord.MISSING else verdict_word.value,
                tone=_TONE.get(verdict_word, Tone.DOUBT),
                health=health.value,
                health_tone=_HEALTH_TONE[health],
                fate="resume here" if verdict.key == chosen else _fate(rejected.get(verdict.key)),
                is_chosen=verdict.key == chosen,
                findings=verdict.findings,
            )
        )
    return rows


def _rejected(report: TreeReport) -> Sequence[Rejection]:
    decision = report.resolution.decision
    return decision.point.rejected if isinstance(decision, ResumePlan) else decision.rejected


def _fate(rejection: Rejection | None) -> str:
    if rejection is None:
        return ""
    codes = Counter(reason.code.value for reason in rejection.reasons if reason.severity > Severity.NOTE)
    return f"skipped: {', '.join(codes)}" if codes else "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFinding:
    """A finding and its location."""

    finding: Finding
    save: str
    """Name of the checkpoint or of another subject."""

    @property
    def place(self) -> str:
        """Return the ranks of the finding, or its file."""
        path = "" if self.finding.path is None else shown(self.finding.path)
        line = "" if self.finding.line is None else f":{self.finding.line}"
        return f"{path}{line}" or (on_ranks(self.finding.ranks) if self.finding.ranks else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """All findings of one code and severity."""

    code: Row
    severity: Severity
    title: str
    """The code's title in the manual."""
    fixes: tuple[str, ...]
    """The remedies without duplicates, the most frequent first."""
    findings: tuple[PlacedFinding, ...]
    """The findings to list individually."""
    total: int
    where: tuple[tuple[str, str], ...]
    """Checkpoints and their ranks, if that is shorter than the list."""


MOST_FIXES = 3


def kinds(report: TreeReport, most: int) -> list[Kind]:
    """Group all findings by kind, most severe first.

    Args:
        report: All known facts.
        most: Maximum number of findings to list individually, over all kinds. At least one of each kind is listed.
    """
    groups: dict[tuple[Severity, Row], list[PlacedFinding]] = {}
    for finding in all_findings(report):
        groups.setdefault((finding.finding.severity, finding.finding.code), []).append(finding)
    room_left = most
    kinds = []
    for (severity, code), those in sorted(groups.items(), key=lambda group: -group[0][0]):
        remedies = Counter(item.finding.remedy for item in those if item.finding.remedy is not None)
        room = max(room_left, 1)
        kinds.append(
            Kind(
                code=code,
                severity=severity,
                title=code.headline,
                fixes=tuple(shown(remedy) for remedy, _ in remedies.most_common(MOST_FIXES)),
                findings=tuple(those[:room]),
                total=len(those),
                where=_where(those),
            )
        )
        room_left -= min(room, len(those))
    return kinds


_MOST_PLACES = 6


def _where(those: Sequence[PlacedFinding]) -> tuple[tuple[str, str], ...]:
    """Return the ranks for each checkpoint, newest first."""
    ranks: dict[str, set[Rank]] = {}
    for item in those:
        if item.finding.ranks:
            ranks.setdefault(item.save, set()).update(item.finding.ranks)
    if sum(map(len, ranks.values())) <= len(ranks):  # the table is just as short
        return ()
    return tuple((save, on_ranks(sorted(those))) for save, those in list(ranks.items())[:_MOST_PLACES])


def all_findings(report: TreeReport) -> list[PlacedFinding]:
    """Return every finding once. Findings of the newest checkpoint come first, those about the tree last."""
    decision = report.resolution.decision
    places: list[tuple[str, Iterable[Finding]]] = [
        (verdict.name, verdict.findings) for verdict in report.verification.verdicts
    ]
    places += [(rejection.checkpoint.name, rejection.reasons) for rejection in _rejected(report)]
    if isinstance(decision, ResumePlan):
        places.append((decision.point.checkpoint.name, decision.point.findings))
    places += [("the tree", report.verification.inventory.findings), ("the resume", decision.findings)]
    places += [("the health", report.health.report.findings), ("the resumed run", _faults(report.resume))]
    by_finding: dict[Finding, PlacedFinding] = {}
    for name, findings in places:
        for finding in findings:
            by_finding.setdefault(finding, PlacedFinding(finding=finding, save=shown(name)))
    return list(by_finding.values())


def _faults(resume: Postflight | None) -> tuple[Finding, ...]:
    """Return the findings against the last resume, or nothing if it is right, unknown or absent."""
    if resume is None or resume.conclusion.outcome is not Outcome.WRONG:
        return ()
    return tuple(reason.finding for check in resume.checks for reason in check.reasons)


_LOOKED = {
    Level.STRUCTURE: "Headers, sizes and siblings were compared; tensor data was not read.",
    Level.CHECKSUM: "Every byte was read; only shards with a checksum are verified.",
    Level.NUMERICS: "Every byte and every floating-point element was read.",
}


def disk_rows(report: TreeReport) -> list[tuple[str, str]]:
    """Return rows with the size of the saves, and the free space."""
    sizes = [checkpoint.nbytes for checkpoint in report.verification.inventory.checkpoints]
    taken: list[int] = [nbytes for nbytes in sizes if nbytes is not None]
    rows = [("saves", f"{counted(len(sizes), 'checkpoint')}, {size(sum(taken))}")] if taken else []
    if report.free_bytes is not None:
        rows.append(("free on this disk", size(report.free_bytes)))
        if largest := max(taken, default=0):
            rows.append(("room for", counted(report.free_bytes // largest, "more save")))
    return rows


def looked(report: TreeReport) -> list[tuple[str, str]]:
    """Return rows with the level, the extent and the settings of the check."""
    verification = report.verification
    shards = sum(len(verdict.reports) for verdict in verification.verdicts)
    read = sum(verdict.bytes_read for verdict in verification.verdicts)
    rows = [("tree", shown(verification.inventory.root)), ("layout", report.layout)]
    if report.trainer is not None:
        rows.append(("trainer", report.trainer))
    rows += [
        ("level", f"{verification.level.word}. {_LOOKED[verification.level]}"),
        ("shards", f"{shards:,} of {counted(len(verification.verdicts), 'checkpoint')}, {size(read)} read"),
        ("logs", _logs(report)),
    ]
    if report.health.health_file is not None:
        rows.append(("health record", shown(report.health.health_file)))
    rows += [(name, shown(value)) for name, value in report.settings]
    made = moment_if_any(report.made)
    rows.append(("checked", f"{'' if made is None else to_the_minute(made)} UTC, for {lasting(report.seconds)}"))
    return rows


_MOST_NOTES = 8

_STOPPED = {
    NoteKind.COUNT_STOP: "too many norms in a row over the threshold",
    NoteKind.NORM_STOP: "a norm over the threshold",
    NoteKind.NAN_STOP: "a NaN",
}


def log_notes(report: TreeReport) -> list[str]:
    """Return one clause for each point in the log at which training stopped or went back."""
    reported_lines = []
    for note in report.notes:
        if note.kind is NoteKind.REWIND and note.step is not None:
            after = "" if note.previous_step is None else f" after step {note.previous_step:,}"
            reported_lines.append(f"went back to step {note.step:,}{after}")
        elif note.kind in _STOPPED:
            at = "" if note.step is None else f" at step {note.step:,}"
            reported_lines.append(f"stopped{at}: {_STOPPED[note.kind]}")
    more = [f"and {len(reported_lines) - _MOST_NOTES} more"] if len(reported_lines) > _MOST_NOTES else []
    return [*reported_lines[:_MOST_NOTES], *more]


_SHOWN_LOGS = 4


def _logs(report: TreeReport) -> str:
    reading = report.health.reading
    if reading is None:
        return "none found; pass --log"
    names = [shown(name) for name in reading.sources[:_SHOWN_LOGS]]
    more = len(reading.sources) - len(names)
    which = f"{', '.join(names)}{f' and {more} more' if more else ''}: {counted(reading.steps, 'step')}"
    return f"{which}, {counted(reading.problem_count, 'line')} unreadable" if reading.problem_count else which
