"""Check whether a start with the current settings would load the chosen checkpoint."""

from __future__ import annotations

from ckpttool.core.domain.finding import Code, Finding, note, suspect, unknown
from ckpttool.core.domain.plan import JudgedStart, Outcome, ResumePlan, may_be_good


def start_findings(
    start: JudgedStart, plan: ResumePlan, *, trainer: str, config: str | None, remedy: str
) -> tuple[Finding, ...]:
    """Report problems with the current start: it loads a different save, stops, begins at step 0, or is unknown.

    Args:
        start: The simulated start.
        plan: The intended start.
        trainer: The trainer's display name.
        config: The path of the trainer's config; None if there is no config.
        remedy: The change that makes the start load the chosen save.
    """
    chosen, simulation = plan.point.checkpoint, start.simulation
    if start.takes(chosen.name):
        return ()
    if simulation is None or not start.is_known:
        say = note if start.by_script else unknown
        message = f"it is unknown which checkpoint {trainer} would load {start.lead}: {start.reason}"
        return (say(Code.START_UNKNOWN, message, path=config, line=start.line, remedy=remedy),)
    message = f"{start.lead}, {trainer} {start.deed(chosen)}: {start.reason}"
    actual = simulation.would_resume
    say = suspect
    if simulation.outcome is not Outcome.STOPS and _may_be_good(actual, plan):
        say = unknown
        message += f"; it is unknown whether {actual} is good"
    return (
        say(
            Code.START_DIFFERS,
            message,
            path=config,
            line=start.line,
            expected=chosen.name,
            actual=actual,
            remedy=remedy,
        ),
    )


def _may_be_good(name: str | None, plan: ResumePlan) -> bool:
    """Return whether a save of this name was rejected only because it could not be checked, with no known damage."""
    return any(
        rejection.checkpoint.name == name and may_be_good(rejection.reasons) for rejection in plan.point.rejected
    )
