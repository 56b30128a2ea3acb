"""Would the start, as it stands, load what was chosen?"""

from __future__ import annotations

from ckpttool.domain.finding import Code, Finding, note, suspect, unknown
from ckpttool.domain.plan import JudgedStart, ResumePlan


def start_findings(
    start: JudgedStart, plan: ResumePlan, *, trainer: str, config: str | None, remedy: str
) -> tuple[Finding, ...]:
    """Say what speaks against a start as it stands: it loads another save, stops, begins at step 0, or nobody knows.

    Args:
        start: What it would do.
        plan: What it should do.
        trainer: Who is started, as people call it.
        config: The path of its config; None where there is none.
        remedy: What makes it load what was chosen.
    """
    chosen, told = plan.point.checkpoint, start.simulation
    if start.takes(chosen.name):
        return ()
    if told is None or not start.is_known:
        say = note if start.by_script else unknown
        message = f"what {trainer} loads at a start as it stands is not known: {start.reason}"
        return (say(Code.START_UNKNOWN, message, path=config, line=start.line, remedy=remedy),)
    message = f"{start.lead}, {trainer} {start.deed(chosen)}: {start.reason}"
    actual = told.would_resume
    return (
        suspect(
            Code.START_DIFFERS,
            message,
            path=config,
            line=start.line,
            expected=chosen.name,
            actual=actual,
            remedy=remedy,
        ),
    )
