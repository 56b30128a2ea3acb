"""GitHub Actions annotations: one workflow command a line on stdout."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.domain.finding import Severity, told
from ckpttool.domain.preflight import Check, Reason
from ckpttool.domain.view import USUAL, View
from ckpttool.render.escape import shown


def annotate(checks: Sequence[Check], verdict: str, *, world: int | None = None, view: View = USUAL) -> str:
    """Return an annotation for each reason, gravest first, for GitHub shows ten of a kind a step; the verdict last.

    Args:
        checks: What was looked at.
        verdict: In one line.
        world: Ranks that there are, where that is known.
        view: Whether ranks are told by machines, too.

    Source:
        The escapes are those of `issueCommand` in actions/toolkit: in a message `%`, CR and LF, in a property `:` and
        `,` as well.
    """
    kinds: dict[object, list[Reason]] = {}
    for check in checks:
        for place, reason in enumerate(check.reasons):
            finding = reason.finding
            # What is the same on many ranks is one: each would be an annotation that pushes out another.
            alike = (finding.code, finding.severity) if finding.ranks else place
            kinds.setdefault((check.name, alike), []).append(reason)
    gravest_first = sorted(kinds.values(), key=lambda kind: -kind[0].finding.severity)
    return "\n".join([*(_annotation(kind, world, view) for kind in gravest_first), _data(verdict)])


def _annotation(kind: Sequence[Reason], world: int | None, view: View) -> str:
    reason = kind[0]
    finding = reason.finding
    properties = {"title": f"ckpttool {finding.code.value}"}
    if reason.file is not None:
        properties = {"file": shown(reason.file), **properties}
    if reason.file is not None and finding.line is not None:
        properties = {"file": shown(reason.file), "line": str(finding.line), "title": properties["title"]}
    command = "notice" if finding.severity is Severity.NOTE else "error"
    where = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    remedy = f"\nFix: {shown(finding.remedy)}" if finding.remedy else ""
    message = shown(told([each.finding for each in kind], world, view))
    return f"::{command} {where}::{_data(message + remedy)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
