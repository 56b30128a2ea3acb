"""JUnit XML, as defined by Jenkins' xUnit plugin and read by GitLab."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ckpttool.core.domain.finding import Row, Severity, summary_of
from ckpttool.core.domain.preflight import Check, Outcome, Reason
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.render.escape import shown

# Characters that XML 1.0 cannot represent; controls among them are escaped earlier.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(checks: Sequence[Check], name: str, *, view: View = USUAL) -> str:
    """Return a test case for each passed check, and for each kind of reason of the other checks.

    The output is ASCII throughout, so that it works in any runner's locale.
    """
    suite = Element("testsuite", {"name": _text(name)})
    for check in checks:
        _cases(suite, check, view)
    counts = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
    }
    for key, count in counts.items():
        suite.set(key, str(count))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    root = Element("testsuites", {"name": "ckpttool", **{key: str(count) for key, count in counts.items()}})
    root.append(suite)
    indent(root)
    content: bytes = tostring(root, encoding="us-ascii", xml_declaration=True)
    return content.decode("ascii")


def _cases(suite: Element, check: Check, view: View) -> None:
    if check.outcome in {Outcome.PASSED, Outcome.SKIPPED}:
        case = _case(suite, check, check.name)
        if check.outcome is Outcome.SKIPPED or check.unsure:
            SubElement(case, "skipped", {"message": _text(check.summary)})
        notes = [_line(reason) for reason in check.reasons]
        SubElement(case, "system-out").text = "\n".join([_text(check.summary), *notes])
        return
    kinds: dict[Row, list[Reason]] = {}
    for reason in check.reasons:
        if reason.blocks:
            kinds.setdefault(reason.finding.code, []).append(reason)
    for code, reasons in kinds.items():
        first = reasons[0].finding
        kind = "error" if first.severity is Severity.UNKNOWN else "failure"  # not checked does not mean wrong
        problem = SubElement(
            _case(suite, check, code.value),
            kind,
            {"type": code.value, "message": _text(summary_of([reason.finding for reason in reasons], view=view))},
        )
        problem.text = "\n".join(_line(reason) for reason in reasons)


def _case(suite: Element, check: Check, name: str) -> Element:
    return SubElement(suite, "testcase", {"classname": f"ckpttool.{_text(check.name)}", "name": _text(name)})


def _line(reason: Reason) -> str:
    finding = reason.finding
    line = f":{finding.line}" if finding.line is not None else ""
    where = f"{reason.file}{line}: " if reason.file is not None else ""
    remedy = f" (fix: {finding.remedy})" if finding.remedy else ""
    return _text(f"{where}{finding.severity.word} {finding.code.value}: {finding.message}{remedy}")


def _text(text: str) -> str:
    return _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", shown(text))
