"""What in a training config MindFormers finds wrong late or never.

One table of rules; a new one is a function, a line in its module's table, a code and its explanation.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.decide.lint_engine import Rule
from ckpttool.domain.finding import Finding, brief
from ckpttool.domain.settings import Settings
from ckpttool.trainers.mindformers.lint.monitors import MONITORS
from ckpttool.trainers.mindformers.lint.places import PLACES
from ckpttool.trainers.mindformers.lint.training import SAVING, STARTING
from ckpttool.trainers.mindformers.lint.types import SPELLING, TYPES
from ckpttool.trainers.mindformers.train_config import ConfigView

WHEN_READ: tuple[Rule[ConfigView], ...] = (*TYPES, *PLACES)
"""What changes what a resume makes of the config: told by every command that takes one."""

BEFORE_A_START: tuple[Rule[ConfigView], ...] = (*STARTING, *MONITORS, *SAVING, *SPELLING)
"""All others, in the order in which a start would meet what they are about."""


def lint(settings: Settings, rules: Iterable[Rule[ConfigView]]) -> tuple[Finding, ...]:
    """Return what the rules find, in the order of the file and then of the words, never of the rules."""
    view = ConfigView(settings)
    is_part = view.get("base_config") is not None  # the rest stands in another file, which nobody has read
    found = [
        brief(
            Finding(
                code=rule.code,
                severity=problem.severity,
                message=problem.message,
                path=settings.path,
                expected=problem.expected,
                actual=problem.actual,
                remedy=problem.remedy,
                line=view.line(problem.key),
            )
        )
        for rule in rules
        if not (is_part and rule.needs_all)
        for problem in rule.check(view)
    ]
    return as_the_file_has_them(found)


def as_the_file_has_them(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Order findings about a config by line, code and words."""
    return tuple(sorted(findings, key=lambda finding: (finding.line or 0, finding.code.value, finding.message)))
