"""Views of a config for rules, and the problems that rules report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from ckpttool.core.domain.finding import Finding, Row, Severity, brief
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.settings import Nested, SafeFix, Setting, Settings, Value, dotted

_V = TypeVar("_V", bound="View")


class View:
    """A config whose values can be looked up by dotted keys: `section.key`, `list.1.key`."""

    def __init__(self, settings: Settings) -> None:
        """Index the settings of a config for all rules."""
        self.entries = settings.entries
        self._by_key = {dotted(entry.key): entry for entry in settings.entries}
        self._inside: dict[str, list[Setting]] = {}
        for entry in settings.entries:
            self._inside.setdefault(dotted(entry.key[:-1]), []).append(entry)

    def get(self, key: str) -> Value:
        """Return the value of a key; None if the key is not set or empty."""
        entry = self._by_key.get(key)
        return None if entry is None else entry.value

    def setting(self, key: str) -> Setting | None:
        """Return a setting with its line and original text; None if the config has no such key."""
        return self._by_key.get(key)

    def raw(self, key: str) -> object:
        """Return a value with its mappings and lists unchanged; None if the key is not set."""
        value = self.get(key)
        if value is Nested.MAPPING:
            return {str(entry.key[-1]): self.raw(dotted(entry.key)) for entry in self.inside(key)}
        if value is Nested.LIST:
            return [self.raw(dotted(entry.key)) for entry in self.inside(key)]
        return value

    def is_on(self, key: str) -> bool:
        """Return whether a switch is exactly True; another rule checks texts that resemble it."""
        return self.get(key) is True

    def is_section(self, key: str) -> bool:
        """Return whether a key has settings below it."""
        return self.get(key) is Nested.MAPPING and key in self._inside

    def inside(self, key: str) -> Sequence[Setting]:
        """Return the settings directly under a key, in the order of the file."""
        return self._inside.get(key, ())

    def count(self, key: str, default: int = 1) -> int:
        """Return an integer value, or the trainer's default if the key is not set or not an integer."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def at(self, key: str, otherwise: str) -> str:
        """Return the key to report for a setting that may be missing.

        This is the setting's own key, its section's key, or the key that requires it (`otherwise`).
        """
        return key if self.line(key) is not None else otherwise

    def line(self, key: str) -> int | None:
        """Return the line of a setting or, if it is not set, of the section that should contain it."""
        while key:
            entry = self._by_key.get(key)
            if entry is not None and entry.line is not None:
                return entry.line
            key = key.rpartition(".")[0]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that a rule found in a config."""

    severity: Severity
    key: str
    """Dotted key to report: an existing key, or a key in an existing section."""
    message: str
    remedy: str
    """The change that fixes the problem."""
    expected: str | None = None
    """The right value, if there is exactly one; otherwise None."""
    actual: str | None = None
    """The current value; None if it is not reported."""
    fix: str | None = None
    """The new value for `key`, as YAML, if it is a complete and unambiguous fix; otherwise None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[_V]):
    """A rule that detects one kind of mistake in a config."""

    code: Row
    check: Callable[[_V], Iterator[Problem]]
    needs_all: bool = True
    """Whether a missing setting can be the mistake, so that the rule needs the complete config."""


def suspect(key: str, message: str, remedy: str, *, expected: str | None = None, actual: str | None = None) -> Problem:
    """Return a problem that stops a launch."""
    return Problem(severity=Severity.SUSPECT, key=key, message=message, remedy=remedy, expected=expected, actual=actual)


def note(key: str, message: str, remedy: str, *, expected: str | None = None, actual: str | None = None) -> Problem:
    """Return a problem that is reported as a note."""
    return Problem(severity=Severity.NOTE, key=key, message=message, remedy=remedy, expected=expected, actual=actual)


def problems(view: _V, rules: Iterable[Rule[_V]], *, is_part: bool = False) -> Iterator[tuple[Rule[_V], Problem]]:
    """Yield the problems that the rules find in a config.

    Args:
        view: The config.
        rules: The rules to apply.
        is_part: Whether the rest of the config is in another file, which was not read.
    """
    for rule in rules:
        if not (is_part and rule.needs_all):
            yield from ((rule, problem) for problem in rule.check(view))


def findings(view: View, rule_problems: Iterable[tuple[Rule[_V], Problem]], *, path: str) -> tuple[Finding, ...]:
    """Return the problems of a config as findings, sorted by line, code and text.

    Args:
        view: The config.
        rule_problems: Each problem with the rule that found it.
        path: The path of the config, as the user typed it.
    """
    return as_the_file_has_them(
        brief(
            Finding(
                code=rule.code,
                severity=problem.severity,
                message=problem.message,
                path=path,
                expected=problem.expected,
                actual=problem.actual,
                remedy=problem.remedy,
                line=view.line(problem.key),
            )
        )
        for rule, problem in rule_problems
    )


def safe_fixes(view: View, rule_problems: Iterable[tuple[Rule[_V], Problem]]) -> tuple[SafeFix, ...]:
    """Return the fixes for mistakes that have one right value, in the given order.

    Values from an alias are not fixed.
    """
    return tuple(
        SafeFix(code=rule.code, key=setting.key, line=setting.line, value=problem.fix)
        for rule, problem in rule_problems
        if problem.fix is not None and (setting := view.setting(problem.key)) is not None and setting.line is not None
    )


def as_the_file_has_them(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings about a config by line, code and text."""
    return tuple(sorted(findings, key=lambda finding: (finding.line or 0, finding.code.value, finding.message)))
