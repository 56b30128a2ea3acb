"""Findings: single problems, each with a stable code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, overload

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.units import Rank, on_lines, on_nodes, on_ranks
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode
from ckpttool.core.findings import Code, Row, Severity

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    class _Extras(TypedDict, total=False):
        """Optional fields of a finding, with the same names as in `Finding`."""

        path: str | None
        tensor: str | None
        expected: str | None
        actual: str | None
        remedy: str | None
        line: int | None
        ranks: tuple[Rank, ...]
        fact: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem or notable fact, described in one sentence."""

    code: Row
    severity: Severity
    message: str
    """One sentence with the expected and the actual value."""
    path: str | None = None
    """POSIX path, relative to the inventory's root; for findings about a config, as the user typed it."""
    tensor: str | None = None
    expected: str | None = None
    actual: str | None = None
    remedy: str | None = None
    """Next command to run, or setting to change."""
    line: int | None = None
    """Line number in a text file, from 1."""
    ranks: tuple[Rank, ...] = ()
    """Ranks of the files, ascending; `path` is the file of the first rank. Empty if there is no rank or it is unknown.
    """
    fact: str | None = None
    """Beginning of `message` that states the fact, if the rest states a consequence; otherwise None. Not in JSON."""

    @property
    def is_tie(self) -> bool:
        """Whether one of two saves is wrong but it is unknown which, so that this save may be intact."""
        return self.code is Code.SCHEMA_DIFFERS and self.severity is Severity.UNKNOWN


def note(code: Row, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return a note, which changes no verdict."""
    return Finding(code=code, severity=Severity.NOTE, message=message, **extras)


def suspect(code: Row, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return a suspicion: a fact that may or may not be damage, so that the checkpoint does not count as good."""
    return Finding(code=code, severity=Severity.SUSPECT, message=message, **extras)


def unknown(code: Row, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return a finding about a state that is unknown, because it could not be checked or changed during the check."""
    return Finding(code=code, severity=Severity.UNKNOWN, message=message, **extras)


def damage(code: Row, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return a finding about certain damage."""
    return Finding(code=code, severity=Severity.DAMAGE, message=message, **extras)


def unsafe(code: Row, message: str, **extras: Unpack[_Extras]) -> Finding:
    """Return a refusal to read further, because that would be dangerous."""
    return Finding(code=code, severity=Severity.UNSAFE, message=message, **extras)


_MOST_CHARS = 1000


def brief(finding: Finding) -> Finding:
    """Return the finding with long texts shortened, because a finding may quote a value as long as a file."""
    return replace(
        finding,
        message=_brief(finding.message),
        expected=_brief(finding.expected),
        actual=_brief(finding.actual),
        remedy=_brief(finding.remedy),
        fact=_brief(finding.fact),
    )


@overload
def _brief(text: str) -> str: ...
@overload
def _brief(text: str | None) -> str | None: ...
def _brief(text: str | None) -> str | None:
    half = _MOST_CHARS // 2
    return text if text is None or len(text) <= _MOST_CHARS else f"{text[:half]}…{text[-half:]}"


def summary_of(findings: Sequence[Finding], world: int | None = None, view: View = USUAL) -> str:
    """Return one sentence for several findings: the first message, their number, and their ranks or lines.

    Args:
        findings: Findings of one kind; at least one.
        world: Number of ranks, if known.
        view: Whether to also group ranks by machine, and whether to list every rank.
    """
    message = findings[0].message
    ranks = sorted({rank for finding in findings for rank in finding.ranks})
    nodes = ""
    if view.ranks_per_node is not None and ranks:
        nodes = on_nodes(ranks, view.ranks_per_node, everything=view.everything)
    if len(findings) == 1:
        return f"{message.rstrip('.')} ({nodes})" if nodes else message
    total = f"{message.rstrip('.')}; {len(findings)} findings in all"
    if not ranks:
        lines = sorted({finding.line for finding in findings if finding.line is not None})
        is_one_file = len({finding.path for finding in findings}) == 1
        return f"{total}, on {on_lines(lines)}" if lines and is_one_file else total
    # A tree may contain more ranks than a config starts; then "N of M" would be wrong.
    of = "" if world is None or not ranks[-1] < world else f" ({len(ranks)} of {world})"
    return f"{total}, on {on_ranks(ranks, everything=view.everything)}{of}{nodes and f', {nodes}'}"


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity; NOTE if there are no findings."""
    return max([finding.severity for finding in findings], default=Severity.NOTE)


def blocking(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that prevent a checkpoint from counting as good: all findings except notes."""
    return tuple(finding for finding in findings if finding.severity > Severity.NOTE)


def without_answer(findings: Iterable[Finding]) -> bool:
    """Return whether evidence for a choice was unavailable: a log, a health file, marks, remote ranks, or a limit."""
    codes = {Code.LOG_UNREADABLE, Code.HEALTH_UNKNOWN, Code.HEALTH_UNHEARD, Code.SHARD_ELSEWHERE, Code.TOO_MUCH_LOST}
    unknowns = [finding for finding in findings if finding.severity is Severity.UNKNOWN]
    return any(finding.code in codes or finding.code.is_elsewhere or finding.code.leaves_open for finding in unknowns)


def seen_in_part(findings: Iterable[Finding]) -> bool:
    """Return whether the files that are missing here may be on other machines."""
    return any(finding.code.is_elsewhere and finding.severity is Severity.UNKNOWN for finding in findings)


def is_of_absent(finding: Finding) -> bool:
    """Return whether a finding is about a missing file that may be on another machine.

    That machine was not read, or was read before the file was written.
    """
    codes = {Code.RANK_MISSING, Code.SHARD_MISSING, Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE}
    return finding.code in codes and finding.severity >= Severity.UNKNOWN


def withheld(findings: Iterable[Finding]) -> bool:
    """Return whether the contents of a file are unknown, because it was unreadable or changed while it was read."""
    return any(finding.code in NOT_SEEN and finding.severity is Severity.UNKNOWN for finding in findings)


NOT_SEEN = frozenset({Code.UNREADABLE, Code.CHANGED_WHILE_READING})
"""Codes for files that could not be read completely."""


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings about a tree in the standard order: by code, then by path."""
    return tuple(sorted(findings, key=lambda finding: (finding.code.value, finding.path or "")))


OWN_FILE = "find the rank's own file on its disk, or resume from another checkpoint"
"""Remedy for a file under another rank's name."""


def helped(finding: Finding) -> Finding:
    """Return the finding with the default remedy of its code, if it needs a remedy and has none."""
    if finding.remedy is not None or finding.severity is Severity.NOTE:
        return finding
    return replace(finding, remedy=finding.code.remedy)


FOUND_EARLIER = frozenset({Code.FOUND_DAMAGED, Code.REPLICA_DRIFTED})
"""Codes of findings from an earlier read of the content, which remain valid while the files are unchanged."""


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
"""Priority of exit codes for several trees, worst first."""


def safest(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the exit code of the greatest danger among several; 0 if there are no codes."""
    return _first_of(codes, _SAFEST_FIRST)


def of_findings(findings: Iterable[Finding]) -> ExitCode:
    """Return the safest exit code for the findings."""
    return safest(_BY_SEVERITY[finding.severity] for finding in findings)


def of_trees(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the worst exit code among the answers about several trees."""
    return _first_of(codes, _WORST_FIRST)


def _first_of(codes: Iterable[ExitCode], order: Sequence[ExitCode]) -> ExitCode:
    present = set(codes)
    return next((code for code in order if code in present), ExitCode.OK)


__all__ = [
    "FOUND_EARLIER",
    "NOT_SEEN",
    "OWN_FILE",
    "Code",
    "Finding",
    "Row",
    "Severity",
    "blocking",
    "brief",
    "damage",
    "helped",
    "in_order",
    "is_of_absent",
    "note",
    "of_findings",
    "of_trees",
    "safest",
    "seen_in_part",
    "summary_of",
    "suspect",
    "unknown",
    "unsafe",
    "withheld",
    "without_answer",
    "worst",
]
