"""What in a training config MindFormers finds wrong late or never.

One table of rules; a new one is a function, a line in its module's table, a code and its explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.decide.lint_engine import Problem, Rule
from ckpttool.domain.finding import Finding, brief
from ckpttool.domain.settings import SafeFix, Settings
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
        for rule, problem in _problems(view, rules)
    ]
    return as_the_file_has_them(found)


def safe_fixes(settings: Settings) -> tuple[SafeFix, ...]:
    """Return what one value mends, in the order of the file; not where an alias brings the value in."""
    view = ConfigView(settings)
    return tuple(
        SafeFix(code=rule.code, key=setting.key, line=setting.line, value=problem.fix)
        for rule, problem in _problems(view, (*WHEN_READ, *BEFORE_A_START))
        if problem.fix is not None and (setting := view.setting(problem.key)) is not None and setting.line is not None
    )


def _problems(view: ConfigView, rules: Iterable[Rule[ConfigView]]) -> Iterator[tuple[Rule[ConfigView], Problem]]:
    is_part = view.get("base_config") is not None  # the rest stands in another file, which nobody has read
    for rule in rules:
        if not (is_part and rule.needs_all):
            yield from ((rule, problem) for problem in rule.check(view))


def as_the_file_has_them(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Order findings about a config by line, code and words."""
    return tuple(sorted(findings, key=lambda finding: (finding.line or 0, finding.code.value, finding.message)))
