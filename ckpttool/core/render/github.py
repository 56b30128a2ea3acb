"""GitHub Actions annotations: one workflow command per line on stdout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpttool.core.domain.finding import Severity, summary_of
from ckpttool.core.domain.preflight import Check, Reason
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.render.escape import shown


def annotate(
    checks: Sequence[Check],
    verdict: str,
    *,
    is_file: Callable[[str], bool],
    world: int | None = None,
    view: View = USUAL,
) -> str:
    """Return one annotation per reason, then the verdict. Severe ones come first: GitHub shows ten per kind and step.

    Args:
        checks: The checks.
        verdict: The verdict, in one line.
        is_file: Returns whether a path belongs to a file; for any other path, the annotation has no location, but the
        message includes the path.
        world: Number of ranks, if known.
        view: Whether ranks are also grouped by machine.

    Source:
        The escapes are those of `issueCommand` in actions/toolkit: `%`, CR and LF in a message, and also `:` and `,` in
        a property.
    """
    kinds: dict[object, list[Reason]] = {}
    for check in checks:
        for place, reason in enumerate(check.reasons):
            finding = reason.finding
            # Equal findings on many ranks become one, because each annotation would displace another.
            group = (finding.code, finding.severity) if finding.ranks else place
            kinds.setdefault((check.name, group), []).append(reason)
    gravest_first = sorted(kinds.values(), key=lambda kind: -kind[0].finding.severity)
    return "\n".join([*(_annotation(kind, is_file, world, view) for kind in gravest_first), _data(verdict)])


def _annotation(kind: Sequence[Reason], is_file: Callable[[str], bool], world: int | None, view: View) -> str:
    reason = kind[0]
    finding = reason.finding
    message = shown(summary_of([reason.finding for reason in kind], world, view))
    properties = {}
    if reason.file is not None and is_file(reason.file):
        properties["file"] = shown(reason.file)
        if finding.line is not None:
            properties["line"] = str(finding.line)
    elif len({reason.file for reason in kind}) == 1 and reason.file is not None and shown(reason.file) not in message:
        message = f"{shown(reason.file)}: {message}"
    properties["title"] = f"ckpttool {finding.code.value}"
    command = "notice" if finding.severity is Severity.NOTE else "error"
    where = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    remedy = f"\nFix: {shown(finding.remedy)}" if finding.remedy else ""
    return f"::{command} {where}::{_data(message + remedy)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
