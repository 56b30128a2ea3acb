"""GitLab's code quality report, for the widget of a merge request: a list of findings, each at a line of a file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.preflight import Check, Reason
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.sarif import fingerprint, message_of

CHECK = "ckpttool/"
"""The prefix of every check's name."""

_SEVERITY = {
    Severity.NOTE: "info",
    Severity.UNKNOWN: "major",
    Severity.SUSPECT: "major",
    Severity.DAMAGE: "critical",
    Severity.UNSAFE: "blocker",
}


def code_quality(checks: Sequence[Check], *, place: str) -> list[Document]:
    """Return the report, with every reason.

    Args:
        checks: The checks.
        place: The file or folder to name for findings without a location: GitLab drops findings that name none.

    Source: GitLab's documentation of the fields for custom tools. A path is relative to the repository and does
        not begin with `./`; of two entries with the same fingerprint, GitLab shows one.
    """
    times: Counter[str] = Counter()
    return [_entry(reason, place, times) for check in checks for reason in check.reasons]


def _entry(reason: Reason, place: str, times: Counter[str]) -> Document:
    finding = reason.finding
    path = shown(reason.file if reason.file is not None else place).removeprefix("./")
    mark = fingerprint(finding.code, path, finding.message)
    times[mark] += 1
    if times[mark] > 1:  # the same on another line: distinguished by order, because line numbers change
        mark = hashlib.sha256(f"{mark} {times[mark]}".encode()).hexdigest()[: len(mark)]
    return {
        "description": message_of(finding),
        "check_name": f"{CHECK}{finding.code.value}",
        "fingerprint": mark,
        "severity": _SEVERITY[finding.severity],
        "location": {"path": path, "lines": {"begin": finding.line if reason.file is not None and finding.line else 1}},
    }
