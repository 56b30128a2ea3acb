"""Where `--report` may write: never over anything but an earlier report of the same format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

from ckpttool.cli import own_output
from ckpttool.cli.reports import ReportFormat
from ckpttool.domain.checkpoint import LayoutName
from ckpttool.domain.question import TreeQuestion
from ckpttool.errors import CkptToolError, UsageError
from ckpttool.storage.base import ByteSource
from ckpttool.trainers.locate import locate

_LIMIT = 64 << 20
"""Bytes. A report on 10,000 ranks that each lost a shard fits."""

_SCHEMAS = ("ckpttool/preflight/", "ckpttool/lint/")
_SUITE = re.compile(r"""<\?xml [^>]*>\s*<testsuites name="ckpttool"[^>]*>\s*<testsuite name="ckpttool [a-z-]+"[^>]*>""")
_ANNOTATION = re.compile(r"::(error|notice) (file=[^,]*,)?(line=[0-9]+,)?title=ckpttool ")
_VERDICT = re.compile(r"(NO-GO|GO): |[0-9]+ configs?: nothing that stops")


def assert_replaceable(
    files: Sequence[tuple[ReportFormat, str]], *, inputs: Iterable[str], tree: TreeQuestion | None = None
) -> None:
    """Refuse a report's file that is not ours, before an hour of checking is spent on what cannot be written.

    Args:
        files: Format and path of each.
        inputs: Files that the question is about.
        tree: Which tree is looked at, if any.

    Raises:
        UsageError: One lies in the tree or is a file that was asked about, its folder is not there, something else
            stands in its place, or two are one file.
    """
    for (_, one), (_, other) in combinations(files, 2):
        if own_output.same_file(one, other):
            raise UsageError(f"two reports cannot be in one file: --report …={other}")
    asked = tuple(inputs)
    root = _root_of(tree) if tree is not None and files else None
    for fmt, target in files:
        form = fmt.value
        if any(own_output.same_file(target, one) for one in asked):
            raise UsageError(f"--report {form}={target} is a file that is asked about; name another")
        if root is not None and own_output.lies_under(target, root):
            raise UsageError(f"--report {form}={target} lies in the checkpoint tree, in which nothing is changed")
        own_output.assert_replaceable(
            target, option=f"--report {form}", is_ours=_ours(_IS_OURS[fmt]), what=f"{form} report"
        )


def _root_of(tree: TreeQuestion) -> str | None:
    """Return the folder that is looked at; None where there is none, which the report itself then says."""
    try:
        found = locate(tree.path, layout=tree.layout)
    except CkptToolError:
        return None
    # A lone file's folder is anybody's, and no tree.
    return None if found.layout.name is LayoutName.LOOSE_FILE else found.storage.root


def _ours(judge: Callable[[str], bool]) -> Callable[[ByteSource], bool]:
    def is_ours(source: ByteSource) -> bool:
        size = source.stamp.size
        return size <= _LIMIT and judge(source.read(0, size).decode("utf-8"))

    return is_ours


def _is_json(text: str) -> bool:
    document = json.loads(text)
    return isinstance(document, dict) and str(document.get("schema")).startswith(_SCHEMAS)


def _is_sarif(text: str) -> bool:
    """Several runs are what somebody else has put together."""
    document: Any = json.loads(text)
    try:
        (run,) = document["runs"]
        return bool(run["tool"]["driver"]["name"] == "ckpttool")
    except (KeyError, TypeError):
        return False


def _is_junit(text: str) -> bool:
    return _SUITE.match(text) is not None and text.count("<testsuite ") == 1


def _is_github(text: str) -> bool:
    *annotations, verdict = text.rstrip("\n").split("\n")
    return _VERDICT.match(verdict) is not None and all(_ANNOTATION.match(line) for line in annotations)


_IS_OURS: dict[ReportFormat, Callable[[str], bool]] = {
    ReportFormat.JSON: _is_json,
    ReportFormat.GITHUB: _is_github,
    ReportFormat.JUNIT: _is_junit,
    ReportFormat.SARIF: _is_sarif,
}
