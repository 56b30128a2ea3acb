"""What in a training config MindFormers finds wrong late or never.

One table of rules; a new one is a function, a line in its module's table, a code and its explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, findings, problems
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.settings import SafeFix, Settings
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
    return findings(view, _problems(view, rules), path=settings.path)


def safe_fixes(settings: Settings) -> tuple[SafeFix, ...]:
    """Return what one value mends, in the order of the file; not where an alias brings the value in."""
    view = ConfigView(settings)
    return tuple(
        SafeFix(code=rule.code, key=setting.key, line=setting.line, value=problem.fix)
        for rule, problem in _problems(view, (*WHEN_READ, *BEFORE_A_START))
        if problem.fix is not None and (setting := view.setting(problem.key)) is not None and setting.line is not None
    )


def _problems(view: ConfigView, rules: Iterable[Rule[ConfigView]]) -> Iterator[tuple[Rule[ConfigView], Problem]]:
    return problems(view, rules, is_part=view.get("base_config") is not None)
