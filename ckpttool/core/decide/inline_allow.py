"""Findings that a config accepts in comments: `# ckpttool: allow CODE`, on the same line or the line above."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from ckpttool.core.domain.finding import Code, Finding, note
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.extensions import rows

_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*ckpttool:\s*allow\b(?:\s+(?P<codes>[^\s,#]+(?:\s*,\s*[^\s,#]+)*))?")
"""Pattern of the comment. Text after the codes, separated by a space, may give the reason."""

_OF_A_START = (Code.START_DIFFERS.value, Code.START_UNKNOWN.value)
"""Codes that only the check of a start reports; a comment about them is valid even if it matches no finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The findings about a config, separated into accepted and remaining findings."""

    findings: tuple[Finding, ...]
    """The remaining findings, and a note for every code in a comment that matches no finding."""
    silenced: tuple[Finding, ...]


class _Word(NamedTuple):
    """One code in a comment."""

    code: str
    at: int
    """Line of the comment, from 1."""
    line: int
    """Line that the comment applies to, from 1."""


def part(findings: Sequence[Finding], text: str, *, path: str) -> Allowed:
    """Separate the findings that a config's comments accept from all others.

    Args:
        findings: Findings about this config, in any order.
        text: The complete file.
        path: The path of the config, as the user typed it.
    """
    comments = tuple(_words(text))
    by_place = _places(comments)
    silenced = _silenced(findings, by_place)
    used = {_place(finding) for finding in silenced}
    remaining = [finding for finding in findings if finding not in silenced]
    used |= {place for place in by_place if place[0] in _OF_A_START}
    remaining += (_unused(comment, path) for comment in comments if (comment.code, comment.line) not in used)
    return Allowed(findings=tuple(sorted(remaining, key=lambda finding: finding.line or 0)), silenced=silenced)


def allowed_in(text: str, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings about a config that its comments accept."""
    return _silenced(findings, _places(_words(text)))


def _places(comments: Iterable[_Word]) -> frozenset[tuple[str, int | None]]:
    return frozenset((comment.code, comment.line) for comment in comments)


def _silenced(findings: Sequence[Finding], places: frozenset[tuple[str, int | None]]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if _place(finding) in places and finding.code.may_be_allowed)


def _place(finding: Finding) -> tuple[str, int | None]:
    return finding.code.value, finding.line


def _words(text: str) -> Iterator[_Word]:
    """Yield the codes of all comments; a comment on its own line applies to the next line that is not a comment."""
    waiting: list[tuple[str, int]] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = _COMMENT.search(line)
        codes = [] if match is None else re.split(r"\s*,\s*", match["codes"] or "")
        waiting += [(code, number) for code in codes]
        if line.lstrip().startswith("#"):
            continue
        yield from (_Word(code, at, number) for code, at in waiting)
        waiting = []
    yield from (_Word(code, at, at) for code, at in waiting)


def _unused(comment: _Word, path: str) -> Finding:
    allowable = [row.value for row in rows() if row.may_be_allowed]
    if comment.code in allowable:
        why, remedy = f"line {comment.line} has no finding {comment.code}", "remove the code from the comment"
    else:
        why = f"no finding that can be allowed has the code {comment.code!r}"
        close = get_close_matches(comment.code, allowable, n=1)
        remedy = f"did you mean {close[0]}?" if close else "`ckpttool explain` lists all codes"
    return note(Code.ALLOW_UNUSED, f"the comment allows nothing: {why}", path=path, line=comment.at, remedy=remedy)
