"""SARIF 2.1.0 for code scanning, with explained rules and with results at lines of configs and at shards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

from ckpttool.core.domain.finding import Finding, Row, Severity
from ckpttool.core.domain.preflight import Check, Reason, exit_of
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(checks: Sequence[Check], *, place: str, version: str) -> Document:
    """Return one run with every reason as a result.

    Args:
        checks: The checks.
        place: A file or folder for results that are not about a file, because code scanning drops results without a
        location.
        version: The version of ckpttool.
    """
    reasons = [reason for check in checks for reason in check.reasons]
    codes = sorted({reason.finding.code for reason in reasons})
    driver: Document = {
        "name": "ckpttool",
        "semanticVersion": version,
        "rules": [_rule(code) for code in codes],
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [{"executionSuccessful": True, "exitCode": exit_of(checks).value}],
                "results": [_result(reason, codes.index(reason.finding.code), place) for reason in reasons],
            }
        ],
    }


def _rule(code: Row) -> Document:
    text = " ".join([code.meaning, *(f"{title}: {text}" for title, text in code.trainers.items())])
    return {
        "id": code.value,
        "shortDescription": {"text": code.headline},
        "fullDescription": {"text": code.meaning},
        "help": {"text": "\n".join([text, *code.steps])},
        "defaultConfiguration": {"level": _level(code.weights[-1])},
    }


def _result(reason: Reason, index: int, place: str) -> Document:
    finding = reason.finding
    uri = _uri(reason.file if reason.file is not None else place)
    physical: dict[str, Document] = {"artifactLocation": {"uri": uri}}
    if reason.file is not None and finding.line is not None:
        physical["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.code.value,
        "ruleIndex": index,
        "level": _level(finding.severity),
        "message": {"text": message_of(finding)},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": {"ckpttool/v1": fingerprint(finding.code, uri, finding.message)},
    }


def message_of(finding: Finding) -> str:
    """Return the problem and the remedy."""
    remedy = f" Fix: {shown(finding.remedy).rstrip('.')}." if finding.remedy else ""
    return f"{shown(finding.message).rstrip('.')}.{remedy}"


def _level(severity: Severity) -> str:
    return "note" if severity is Severity.NOTE else "error"


def _uri(path: str) -> str:
    """Encode the path as a URI reference; a byte that is not UTF-8 becomes a separate escape."""
    quoted = quote(path.encode("utf-8", "surrogateescape"), safe="/~")
    return f"file://{quoted}" if path.startswith("/") else quoted.removeprefix("./")


def fingerprint(code: Row, place: str, message: str) -> str:
    """Return a fingerprint of the problem and the file, without the line, so that it is stable when lines move."""
    return hashlib.sha256("\n".join((code.value, place, shown(message))).encode()).hexdigest()[:32]
