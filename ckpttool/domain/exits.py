"""Answer to exit code, in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckpttool.domain.finding import Code, Finding, Severity, seen_in_part, without_answer, worst
from ckpttool.domain.health import Health
from ckpttool.domain.plan import NoResumePoint, ResumePlan, may_be_good
from ckpttool.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.domain.capture import Capture, Captures, NanReplay
    from ckpttool.domain.checkpoint import Listing
    from ckpttool.domain.contents import Contents
    from ckpttool.domain.difference import Difference
    from ckpttool.domain.forecast import Forecast
    from ckpttool.domain.fp8_curves import CurvesAnswer
    from ckpttool.domain.fp8_plan import Fp8Plan, Fp8Verdict, NoPlan
    from ckpttool.domain.fp8_probe import Fp8Probe
    from ckpttool.domain.guard_report import GuardReport
    from ckpttool.domain.healing import Healing
    from ckpttool.domain.launch import Fragment, Launch
    from ckpttool.domain.log_answer import AsdAnswer, CalibrationAnswer, HealthAnswer, LogReading, ReplayAnswer
    from ckpttool.domain.manifest import Sealed
    from ckpttool.domain.plan import Resolution
    from ckpttool.domain.preflight import Check, Lint, Preflight
    from ckpttool.domain.retention import Pruning, Repair, Trash
    from ckpttool.domain.verdict import Verification
    from ckpttool.domain.watching import Watched, WatchEvent

_BY_SEVERITY = {
    Severity.NOTE: ExitCode.OK,
    Severity.UNKNOWN: ExitCode.INCOMPLETE,
    Severity.SUSPECT: ExitCode.DAMAGE,
    Severity.DAMAGE: ExitCode.DAMAGE,
    Severity.UNSAFE: ExitCode.UNSAFE,
}
_BY_HEALTH = {
    Health.HEALTHY: ExitCode.OK,
    Health.UNKNOWN: ExitCode.INCOMPLETE,
    Health.UNHEALTHY: ExitCode.DAMAGE,
}
_SAFEST_FIRST = (ExitCode.UNSAFE, ExitCode.NOTHING_TO_RESUME, ExitCode.DAMAGE, ExitCode.INCOMPLETE)
_STOPS_FIRST = (ExitCode.UNSAFE, ExitCode.USAGE, ExitCode.UNKNOWN_LAYOUT, *_SAFEST_FIRST[1:])
"""As above where what stops a command is a reason among others: without a question there is no answer."""

_WORST_FIRST = (
    ExitCode.UNSAFE,
    ExitCode.FAILED,
    ExitCode.NOTHING_TO_RESUME,
    ExitCode.DAMAGE,
    ExitCode.USAGE,
    ExitCode.UNKNOWN_LAYOUT,
    ExitCode.LOCKED,
    ExitCode.INCOMPLETE,
    ExitCode.NOT_DURABLE,
)
"""Of several trees."""


def of_trees(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the worst of the codes with which the answers about several trees would have ended."""
    ended = set(codes)
    return next((code for code in _WORST_FIRST if code in ended), ExitCode.OK)


def of_findings(findings: Iterable[Finding]) -> ExitCode:
    """Return the safest of the codes that the findings ask for."""
    codes = {_BY_SEVERITY[finding.severity] for finding in findings}
    return next((code for code in _SAFEST_FIRST if code in codes), ExitCode.OK)


def of_listing(listing: Listing) -> ExitCode:
    """Damage is what the listing alone shows: a missing rank, a file that is none."""
    inventory = listing.inventory
    return of_findings([*inventory.findings, *(finding for one in inventory.checkpoints for finding in one.findings)])


def of_verification(answer: Verification) -> ExitCode:
    """Return the safest code over all checkpoints; where there is none, nothing was proven."""
    if not answer.verdicts:
        return ExitCode.NOTHING_TO_RESUME
    own = (finding for verdict in answer.verdicts for finding in verdict.findings)
    return of_findings([*answer.inventory.findings, *own])


def of_forecast(answer: Forecast) -> ExitCode:
    """Return whether there is anything to read."""
    return ExitCode.OK if answer.checkpoints else ExitCode.NOTHING_TO_RESUME


def of_event(answer: WatchEvent) -> ExitCode:
    """Return what the findings of one event ask for."""
    return of_findings(answer.findings)


def of_watch(known: Watched) -> ExitCode:
    """Return the safest code over all saves that were told, as their verdicts ask for; where there is none, 11."""
    from ckpttool.domain.verdict import VerdictWord
    from ckpttool.domain.watching import SaveState

    if not known.saves:
        return ExitCode.NOTHING_TO_RESUME
    words = {save.word for save in known.saves if save.state is SaveState.BAD}
    states = {save.state for save in known.saves}
    codes = {ExitCode.INCOMPLETE for save in known.saves if save.told_incomplete}
    codes |= {ExitCode.INCOMPLETE for node in known.nodes if node.told or not node.mark}
    if SaveState.COMPLETE in states or states == {SaveState.SAVING}:  # nobody knows yet
        codes.add(ExitCode.INCOMPLETE)
    unknown = {VerdictWord.UNREADABLE, VerdictWord.UNSTABLE, VerdictWord.UNSUPPORTED}
    for word in words:
        bad = ExitCode.UNSAFE if word is VerdictWord.UNSAFE else ExitCode.DAMAGE
        codes.add(ExitCode.INCOMPLETE if word in unknown else bad)
    return next((code for code in _SAFEST_FIRST if code in codes), ExitCode.OK)


def of_contents(answer: Contents) -> ExitCode:
    """Return what the shards' own findings ask for: the same as `verify` says of their structure."""
    return of_findings(answer.findings)


def of_difference(answer: Difference) -> ExitCode:
    """Return 0 whatever differs: that is the answer. Damage is not; nor, if asked for, what differs or is unknown."""
    codes = {of_findings(answer.findings)}
    if answer.exit_code:
        codes |= {ExitCode.DAMAGE} if answer.tensors else {ExitCode.INCOMPLETE} if answer.uncompared else set()
    return next((code for code in _SAFEST_FIRST if code in codes), ExitCode.OK)


def of_sealed(answer: Sealed) -> ExitCode:
    """Return the safest code over all checkpoints; where there is none, nothing was sealed."""
    if not answer.sealings:
        return ExitCode.NOTHING_TO_RESUME
    return of_findings(finding for sealing in answer.sealings for finding in sealing.findings)


def of_health(answer: HealthAnswer) -> ExitCode:
    """Return 10 where the newest checkpoint is unhealthy or the record is wrong, 14 where health cannot be told."""
    newest = answer.newest
    if newest is None:
        return ExitCode.NOTHING_TO_RESUME
    codes = {of_findings(answer.report.findings), _BY_HEALTH[newest.health]}
    if answer.report.threshold is not None and newest.source == "record":
        codes.add(ExitCode.INCOMPLETE)  # the threshold was asked for, and could not be applied
    return next((code for code in _SAFEST_FIRST if code in codes), ExitCode.OK)


def of_replay(answer: ReplayAnswer) -> ExitCode:
    """Return 14 if a log could not be read to its end, or shows nothing that could be judged."""
    judged = answer.result.judged
    if judged is not None and judged.first is None:
        return ExitCode.INCOMPLETE
    return _of_reading(answer.reading, shown=len(answer.result.events) + answer.result.steps_seen)


def _of_reading(reading: LogReading, *, shown: int) -> ExitCode:
    return ExitCode.INCOMPLETE if reading.unreadable or not shown else ExitCode.OK


def of_curves(answer: CurvesAnswer) -> ExitCode:
    """Return 10 where the candidate leaves its baseline, 14 where that cannot be told or a log was not read."""
    if answer.leaves:
        return ExitCode.DAMAGE
    told = answer.comparison.told and not any(reading.unreadable for reading in answer.readings)
    return ExitCode.OK if told else ExitCode.INCOMPLETE


def of_calibration(answer: CalibrationAnswer) -> ExitCode:
    """Return 10 where the stretch is not normal, 14 where nothing can be recommended."""
    if any(one.alarms_too_often for one in answer.thresholds):
        return ExitCode.DAMAGE
    return _of_reading(answer.reading, shown=len(answer.thresholds))


def of_asd(answer: AsdAnswer) -> ExitCode:
    """Return 10 where something is not as its author meant it."""
    return of_findings(answer.findings)


def of_probe(answer: Fp8Probe) -> ExitCode:
    """Return 10 where a weight would be lost, else what the findings ask for."""
    from ckpttool.domain.fp8_probe import Risk, TensorRole

    lost = any(tensor.risk is Risk.LOST and tensor.role is TensorRole.LINEAR for tensor in answer.tensors)
    codes = {of_findings(answer.findings), *([ExitCode.DAMAGE] if lost else [])}
    return next((code for code in _SAFEST_FIRST if code in codes), ExitCode.OK)


def of_experiments(answer: Fp8Plan | NoPlan) -> ExitCode:
    """Return 0 where experiments are planned, 14 where none can tell anything."""
    from ckpttool.domain.fp8_plan import NoPlan

    return ExitCode.INCOMPLETE if isinstance(answer, NoPlan) else ExitCode.OK


def of_verdict(answer: Fp8Verdict) -> ExitCode:
    """Return 10 where something of FP8 is guilty and no cure that keeps FP8 was shown, 14 where it is not decided."""
    from ckpttool.domain.fp8_plan import VerdictKind

    if answer.kind is VerdictKind.INNOCENT:
        return ExitCode.OK
    if answer.kind not in {VerdictKind.CULPRIT, VerdictKind.SOFTWARE, VerdictKind.STALE_SCALE, VerdictKind.FORMAT}:
        return ExitCode.INCOMPLETE
    cured = answer.cure is not None and answer.cure.keeps_fp8 and answer.cure.restores
    return ExitCode.OK if cured else ExitCode.DAMAGE


def of_guard_report(answer: GuardReport) -> ExitCode:
    """Return 10 where a person has to look: a stop, a strike, a wrong product, a capture, a last save that failed."""
    if answer.needs_somebody:
        return ExitCode.DAMAGE
    return _of_reading(answer.reading, shown=len(answer.ranks))


def of_capture(answer: Capture | Captures) -> ExitCode:
    """Return 14 where a rank's part of a capture is not there, or is not what was written."""
    from ckpttool.domain.capture import Captures

    captures = answer.captures if isinstance(answer, Captures) else (answer,)
    return of_findings(finding for capture in captures for finding in capture.findings)


def of_nan_replay(answer: NanReplay) -> ExitCode:
    """Return 0 where the step came out as it was, 10 where it did not, 14 where it could not be computed."""
    could_not = of_findings(answer.findings)
    return could_not if could_not or answer.reproduced else ExitCode.DAMAGE


def of_resolution(answer: Resolution) -> ExitCode:
    """As `of_plan`, of what `resolve` was asked."""
    return of_plan(answer.decision, strict=answer.strict)


def of_plan(answer: ResumePlan | NoResumePoint, *, strict: bool) -> ExitCode:
    """Return 0 where a checkpoint was chosen; with `strict`, only where no newer one was rejected for damage.

    Where the choice loses more than may be lost, or a rank would start where its files are not: 10.

    Where a log that was to have a say could not be read to its end, or showed no step, the choice was made without it:
    14.
    """
    match answer:
        case NoResumePoint():
            reasons = [reason for one in answer.rejected for reason in one.reasons]
            unsafe = worst([*reasons, *answer.findings]) is Severity.UNSAFE
            if unsafe:
                return ExitCode.UNSAFE
            return ExitCode.NOTHING_TO_RESUME if answer.is_sure else ExitCode.INCOMPLETE
        case ResumePlan():
            if (strict and answer.point.rejected) or any(_is_wrong_start(finding) for finding in answer.findings):
                return ExitCode.DAMAGE
            return ExitCode.INCOMPLETE if without_answer(answer.findings) else ExitCode.OK


def _is_wrong_start(finding: Finding) -> bool:
    """Tell whether a start from what was chosen is not what anybody wants, whole as it is."""
    codes = {Code.TOO_MUCH_LOST, Code.SHARD_ELSEWHERE}
    return finding.code in codes and finding.severity in {Severity.SUSPECT, Severity.DAMAGE}


def of_preflight(checks: Iterable[Check]) -> ExitCode:
    """Return 0 where every check passed, else the safest of the codes that the checks ask for."""
    codes = set()
    for check in checks:
        codes.add(check.stopped or of_findings(reason.finding for reason in check.reasons))
    return next((code for code in _STOPS_FIRST if code in codes), max(codes, default=ExitCode.OK))


def of_report(answer: Preflight | Lint) -> ExitCode:
    """As `of_preflight`, of a whole report."""
    return of_preflight(answer.checks)


def of_launch(answer: Launch | Fragment | Preflight) -> ExitCode:
    """Return 0 where the config is written; else what `preflight`, or where none is to be written `resolve` would."""
    from ckpttool.domain.launch import Fragment
    from ckpttool.domain.preflight import Preflight

    if isinstance(answer, Fragment):
        return of_plan(answer.decision, strict=answer.strict)
    return of_preflight(answer.checks) if isinstance(answer, Preflight) else ExitCode.OK


def of_pruning(pruning: Pruning) -> ExitCode:
    """Return 0 where the plan stands, done or not; what was refused says why, and a tree without a good one counts."""
    if not pruning.plan.good and not seen_in_part(pruning.refusals):
        nothing = ExitCode.INCOMPLETE if pruning.plan.is_undecided else ExitCode.NOTHING_TO_RESUME
        return next(code for code in _SAFEST_FIRST if code in {of_findings(pruning.refusals), nothing})
    return of_findings(pruning.refusals)


def of_healing(healing: Healing) -> ExitCode:
    """Return 0 where all that is wrong is mended, or would be with --apply; 11 where nothing proves a donor.

    Where no shard is missing or damaged, and nobody knows whether the save is good: 14.
    """
    if not healing.shards and may_be_good(healing.lost):
        return ExitCode.INCOMPLETE
    if healing.is_refused:
        return ExitCode.NOTHING_TO_RESUME
    return of_findings((*healing.lost, *healing.refusals))


def of_repair(repair: Repair) -> ExitCode:
    """Return 0 where the records are right, or would be with --apply."""
    if repair.checkpoint is None:
        return ExitCode.NOTHING_TO_RESUME if repair.is_sure else ExitCode.INCOMPLETE
    return of_findings(repair.refusals)


def of_trash(trash: Trash) -> ExitCode:
    """Return 0 where it is known what lies there, and what was restored is whole as far as headers show."""
    return of_findings(trash.findings)
