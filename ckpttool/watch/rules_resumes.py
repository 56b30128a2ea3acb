"""The last resume in the training logs, and its event."""

from __future__ import annotations

from collections.abc import Collection

from ckpttool.core.domain.frozen import replace
from ckpttool.core.findings import Row
from ckpttool.postflight.model.answers import LastResume, Outcome, Postflight
from ckpttool.watch.model import EventKind, KnownResume, Watched, WatchEvent
from ckpttool.watch.rules_seen_saves import fingerprint

_KINDS = {
    Outcome.RESUMED: EventKind.RESUME_PROVEN,
    Outcome.WRONG: EventKind.RESUME_WRONG,
    Outcome.UNKNOWN: EventKind.RESUME_UNKNOWN,
}


def resumed(watched: Watched, resume: LastResume) -> tuple[Watched, tuple[WatchEvent, ...]]:
    """Report a resume once, as soon as more steps cannot change the answer.

    Args:
        watched: The state before.
        resume: The last start in the logs, and its judgement.
    """
    start = fingerprint(resume.start)
    if watched.resume is not None and watched.resume.start == start:
        return watched, ()
    if not resume.is_settled:
        return replace(watched, resume=None), ()
    answer = resume.answer
    kind = _KINDS[answer.conclusion.outcome]
    findings = tuple(reason.finding for check in answer.checks for reason in check.reasons)
    known = KnownResume(
        start=start,
        step=answer.step,
        is_wrong=None if kind is EventKind.RESUME_UNKNOWN else kind is EventKind.RESUME_WRONG,
        codes=tuple(code.value for code in answer.faults),
        why=answer.headline,
    )
    event = WatchEvent(
        kind=kind,
        subject=f"resume {start}",
        name=_saved_name(watched, answer),
        step=answer.step,
        findings=findings,
        why=_why(answer),
    )
    return replace(watched, resume=known), (event,)


def _saved_name(watched: Watched, answer: Postflight) -> str | None:
    return next((save.name for save in watched.saves if save.step == answer.step), None)


def _why(answer: Postflight) -> str:
    """Return the answer, with the codes of the faults and its assumptions, in one line."""
    codes = f" ({', '.join(code.value for code in answer.faults)})" if answer.faults else ""
    assumed = f"; assumed: {' '.join(answer.assumptions)}" if answer.assumptions else ""
    return f"{answer.headline}{codes}{assumed}"


def still_wrong(before: Watched, watched: Watched) -> tuple[str, ...]:
    """Return a sentence about a wrong resume that an earlier watch reported; or nothing.

    Args:
        before: The state before the poll.
        watched: The state after the logs were read.
    """
    resume = watched.resume
    if resume is None or not resume.is_wrong or before.resume != resume:
        return ()
    step = "" if resume.step is None else f" from step {resume.step}"
    return (f"the resume{step} is still wrong ({', '.join(resume.codes)}): {resume.why}",)


def accepted(watched: Watched, allowed: Collection[Row]) -> Watched:
    """Return the state without a wrong resume whose faults the user accepts by now."""
    resume = watched.resume
    if resume is None or not resume.is_wrong or not {*resume.codes} <= {row.value for row in allowed}:
        return watched
    return replace(watched, resume=replace(resume, is_wrong=False))
