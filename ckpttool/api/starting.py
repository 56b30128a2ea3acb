"""What a start as it stands would load: judged by the simulation that `--simulate own` shows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ckpttool.api.resolving import own_start
from ckpttool.decide.start import start_findings
from ckpttool.domain.plan import JudgedStart, ResumePlan
from ckpttool.render.answers.resume import fragment
from ckpttool.render.shell import join

if TYPE_CHECKING:
    from ckpttool.api.resolving import Answer
    from ckpttool.domain.finding import Finding

_OWN_SCRIPT = "the training's own script names what it loads"


def judged_start(answer: Answer) -> JudgedStart | None:
    """Tell what the start as it stands would load; None where nothing was chosen that it could be compared with."""
    plan, trainer = answer.decision, answer.tree.trainer
    if not isinstance(plan, ResumePlan):
        return None
    if trainer is None or trainer.simulator is None:
        return JudgedStart(simulation=None, why=_OWN_SCRIPT, by_script=True)
    session, start = own_start(answer)
    with closing(session):
        return trainer.simulator.as_it_stands(start, plan)


def against_start(start: JudgedStart, answer: Answer, plan: ResumePlan) -> tuple[Finding, ...]:
    """Say what speaks against it, with the way that makes it load what was chosen."""
    trainer, config = answer.tree.trainer, answer.question.config
    return start_findings(
        start,
        plan,
        trainer="its user" if trainer is None else trainer.title,
        config=None if config is None else config.path,
        remedy="; or ".join(_ways(start, answer, plan)),
    )


def _ways(start: JudgedStart, answer: Answer, plan: ResumePlan) -> list[str]:
    trainer, config = answer.tree.trainer, answer.question.config
    ways = []
    if trainer is not None and trainer.launch is not None:
        if config is None:
            return [join(["ckpttool", "preflight", plan.root, "--config", "BASE.yaml"])]
        launch = join(["ckpttool", "launch", plan.root, "--config", config.path, "--output", "NEW.yaml"])
        ways.append(f"{launch}, and start with that")
    else:
        said = (setting for setting in plan.load.settings if not setting.is_alternative)
        told = "; ".join(f"{where}: {text}" for where, text in fragment(said))
        ways.append(f"name it ({told}), and --allow start-differs")
    if start.by_records:
        name = plan.point.checkpoint.name
        ways.append(join(["ckpttool", "repair-meta", plan.root, "--checkpoint", name, "--apply"]))
    return ways
