"""Check which checkpoint the current start would load, using the simulation of `--simulate own`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import AS_CONFIGURED, ON_ITS_OWN, JudgedStart, NoResumePoint, ResumePlan
from ckpttool.core.verbs.resolving import own_start

if TYPE_CHECKING:
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.verbs.resolving import Answer

LAUNCHED = "with the config that `ckpttool launch` writes"
"""Description of a start whose config is not the user's own."""

_ELSEWHERE = "the command line already names it"
_OWN_SCRIPT = "the training's own script decides which checkpoint is loaded"


def judged_start(answer: Answer) -> JudgedStart | None:
    """Return the judged start with the config of the question, or None if no checkpoint was chosen."""
    plan, trainer = answer.decision, answer.tree.trainer
    if not isinstance(plan, ResumePlan):
        return None
    if trainer is None or trainer.simulator is None:
        lead = ON_ITS_OWN if answer.question.config is None else AS_CONFIGURED
        return JudgedStart(simulation=None, lead=lead, why=_OWN_SCRIPT, by_script=True)
    session, start = own_start(answer)
    with closing(session):
        return trainer.simulator.as_it_stands(start, plan)


def judged_launch(answer: Answer, written: RunConfig) -> tuple[Answer, JudgedStart | None]:
    """Return the answer with a config to be written as its question's config, and the judged start with that config."""
    answer = replace(answer, question=replace(answer.question, config=written))
    start = judged_start(answer)
    return answer, None if start is None else replace(start, lead=LAUNCHED)


def with_start(answer: Answer) -> ResumePlan | NoResumePoint:
    """Add a note to the decision if a start that does not name the chosen checkpoint would load a different one.

    The start is checked only if a note is possible: the user gave a config, a newer save was rejected, or the tree is
    unusual. Without a config, a trainer that needs one is assumed to search this tree.
    """
    plan, trainer = answer.decision, answer.tree.trainer
    if not isinstance(plan, ResumePlan) or trainer is None:
        return plan
    if answer.question.config is None and not plan.point.rejected and not answer.tree.inventory.findings:
        return plan
    if trainer.simulator is None:
        return plan
    session, start_ = own_start(answer)
    with closing(session):
        start = trainer.simulator.as_it_stands(start_, plan)
        if start.simulation is None and answer.question.config is None and not start.by_script:
            by_itself = trainer.simulator.pick(start_, None)
            start = JudgedStart(simulation=by_itself, lead=ON_ITS_OWN, by_records=True)
    objections = against_start(start, answer, plan) if start.is_known else ()
    notes = (replace(finding, severity=Severity.NOTE) for finding in objections)
    return replace(plan, findings=(*plan.findings, *notes))


def against_start(start: JudgedStart, answer: Answer, plan: ResumePlan) -> tuple[Finding, ...]:
    """Return the findings against a start, with the settings that make it load the chosen checkpoint."""
    from ckpttool.core.decide.start import start_findings  # most starts do not differ

    trainer, config = answer.tree.trainer, answer.question.config
    return start_findings(
        start,
        plan,
        trainer="the training" if trainer is None else trainer.title,
        config=None if config is None else config.path,
        remedy="; or ".join(_remedies(start, answer, plan)),
    )


def _remedies(start: JudgedStart, answer: Answer, plan: ResumePlan) -> list[str]:
    from ckpttool.core.render.answers.resume import fragment
    from ckpttool.core.render.shell import join, quote  # most trees need no check

    trainer, config = answer.tree.trainer, answer.question.config
    code = (Code.START_DIFFERS if start.is_known else Code.START_UNKNOWN).value
    ways_on = []
    if start.in_the_way is not None:
        return [f"move {quote(f'{plan.root}/{start.in_the_way}')} out of its folder, and run again"]
    if trainer is not None and trainer.launch is not None and (start.mend is not None or start.lead == LAUNCHED):
        return [f"{start.mend or 'correct the base config'}, or --allow {code} if this is intended"]
    if trainer is not None and trainer.launch is not None:
        if config is None and not start.is_known:
            return [join(["ckpttool", "preflight", plan.root, "--config", "BASE.yaml"])]
        base = "BASE.yaml" if config is None else config.path
        launch = join(["ckpttool", "launch", plan.root, "--config", base, "--output", "NEW.yaml"])
        ways_on.append(f"{launch}, and start with the new config")
    else:
        settings = (setting for setting in plan.load.settings if not setting.is_alternative)
        command = "; ".join(f"{where}: {text}" for where, text in fragment(settings))
        advice = start.mend or f"name the checkpoint ({command})"
        if start.mend is not None:
            advice += f", or --allow {code} if {_ELSEWHERE}"
        elif start.is_known or not start.by_script:  # otherwise it is a note, which prevents nothing
            advice += f", and --allow {code}"
        ways_on.append(advice)
    if start.by_records:
        name = plan.point.checkpoint.name
        ways_on.append(join(["ckpttool", "repair", "pointer", plan.root, "--checkpoint", name, "--apply"]))
    return ways_on
