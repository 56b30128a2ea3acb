"""From what was found to an exit code. Which code an answer has is said where the answer is: `Answered.exit_code`."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.errors import ExitCode

_BY_SEVERITY = {
    Severity.NOTE: ExitCode.OK,
    Severity.UNKNOWN: ExitCode.INCOMPLETE,
    Severity.SUSPECT: ExitCode.DAMAGE,
    Severity.DAMAGE: ExitCode.DAMAGE,
    Severity.UNSAFE: ExitCode.UNSAFE,
}
_SAFEST_FIRST = (ExitCode.UNSAFE, ExitCode.NOTHING_TO_RESUME, ExitCode.DAMAGE, ExitCode.INCOMPLETE)

_WORST_FIRST = (
    ExitCode.UNSAFE,
    ExitCode.FAILED,
    ExitCode.NOTHING_TO_RESUME,
    ExitCode.DAMAGE,
    ExitCode.USAGE,
    ExitCode.UNKNOWN_LAYOUT,
    ExitCode.LOCKED,
    ExitCode.INCOMPLETE,
    ExitCode.NOT_DURABLE,
)
"""Of several trees."""


def safest(codes: Iterable[ExitCode]) -> ExitCode:
    """Return which of several codes of one answer it has: that of what is most dangerous to pass over; 0 of none."""
    present = set(codes)
    return next((code for code in _SAFEST_FIRST if code in present), ExitCode.OK)


def of_findings(findings: Iterable[Finding]) -> ExitCode:
    """Return the safest of the codes that the findings ask for."""
    return safest(_BY_SEVERITY[finding.severity] for finding in findings)


def of_trees(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the worst of the codes with which the answers about several trees would have ended."""
    ended = set(codes)
    return next((code for code in _WORST_FIRST if code in ended), ExitCode.OK)
