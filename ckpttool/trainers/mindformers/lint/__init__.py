"""What in a training config MindFormers finds wrong late or never.

One table of rules; a new one is a function, a line in its module's table, a code and its explanation. What is wrong
with single values and places is found where a config is read, for every command that takes one.
"""

from __future__ import annotations

from ckpttool.decide.lint_engine import Rule, View
from ckpttool.domain.finding import Finding, brief
from ckpttool.domain.settings import Settings
from ckpttool.trainers.mindformers.lint.health import HEALTH_RULES
from ckpttool.trainers.mindformers.lint.saving import SAVING
from ckpttool.trainers.mindformers.lint.skipping import SKIPPING
from ckpttool.trainers.mindformers.lint.spelling import SPELLING
from ckpttool.trainers.mindformers.lint.starting import STARTING

RULES: tuple[Rule, ...] = (*STARTING, *SKIPPING, *HEALTH_RULES, *SAVING, *SPELLING)
"""All of them, in the order in which a start would meet what they are about."""


def lint(settings: Settings) -> tuple[Finding, ...]:
    """Return what the rules find, in the order of the file."""
    view = View(settings)
    is_part = view.get("base_config") is not None  # the rest stands in another file, which nobody has read
    found = [
        brief(
            Finding(
                code=rule.code,
                severity=problem.severity,
                message=problem.message,
                path=settings.path,
                remedy=problem.remedy,
                line=view.line(problem.key),
            )
        )
        for rule in RULES
        if not (is_part and rule.needs_all)
        for problem in rule.check(view)
    ]
    return tuple(sorted(found, key=lambda each: (each.line or 0, each.code.value, each.message)))
