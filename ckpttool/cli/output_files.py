"""Files that a command writes beside its answer, never over anything but an earlier one of the same kind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpttool.domain.units import ByteCount
from ckpttool.errors import CkptToolError, UsageError
from ckpttool.render.escape import shown
from ckpttool.storage.base import ByteSource
from ckpttool.storage.local import LocalStorage
from ckpttool.trainers.locate import locate

if TYPE_CHECKING:
    from ckpttool.api import Tree
    from ckpttool.domain.fp8_probe import Fp8Probe
    from ckpttool.domain.question import TreeQuestion
    from ckpttool.domain.tree_report import PageForm, TreeReport
    from ckpttool.domain.verdict import Verification


class ReportFormat(str, Enum):
    """How a report is written."""

    TABLE = "table"
    JSON = "json"
    GITHUB = "github"
    JUNIT = "junit"
    SARIF = "sarif"
    GITLAB = "gitlab"
    MARKDOWN = "markdown"


_LIMIT = 64 << 20
"""Bytes. A report on 10,000 ranks that each lost a shard fits."""

_SCHEMAS = ("ckpttool/preflight/", "ckpttool/lint/")
_SUITE = re.compile(
    r"""<\?xml [^>]*>\s*<testsuites name="ckpttool"[^>]*>\s*<testsuite name="ckpttool [a-z0-9 -]+"[^>]*>"""
)
_ANNOTATION = re.compile(r"::(error|notice) (file=[^,]*,)?(line=[0-9]+,)?title=ckpttool ")
_SUMMARY = re.compile(r"## ckpttool (preflight|lint-config|fp8 lint): [^\n]*\n\n\| \| check \| what was seen \|\n")
_ROW = re.compile(r"\||and [0-9]+ other kinds$|$")
_VERDICT = re.compile(r"(NO-GO|GO): |[0-9]+ configs?: nothing that stops")

_FIRST_LINE = ByteCount(1 << 20)
"""Bytes. A line takes 300 and the name of a tensor."""


def assert_folder(path: str, *, option: str) -> None:
    """Refuse a target whose folder is not there: a slip of the pen, and no fault of the disk.

    Raises:
        UsageError: It is not.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path!r}: there is no folder {str(folder)!r}")


def assert_reports_replaceable(
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
        if _same_file(one, other):
            raise UsageError(f"two reports cannot be in one file: --report …={other}")
    asked = tuple(inputs)
    root = _root_of(tree) if tree is not None and files else None
    for fmt, target in files:
        form = fmt.value
        if any(_same_file(target, one) for one in asked):
            raise UsageError(f"--report {form}={target} is a file that is asked about; name another")
        if root is not None and _lies_under(target, root):
            raise UsageError(f"--report {form}={target} lies in the checkpoint tree, in which nothing is changed")
        if not is_appended(fmt, target):
            _assert_replaceable(target, option=f"--report {form}", is_ours=_whole(_IS_OURS[fmt]), what=f"{form} report")


def is_appended(fmt: ReportFormat, path: str) -> bool:
    """Tell whether a report goes behind what there is: into the file that GitHub gives a step for its summary.

    Whatever else the step says there stays. It is ours to add to, as no other file is.
    """
    given = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return fmt is ReportFormat.MARKDOWN and given != "" and _same_file(path, given)


def _root_of(tree: TreeQuestion) -> str | None:
    """Return the folder that is looked at; None where there is none, which the report itself then says."""
    try:
        found = locate(tree.path, layout=tree.layout, config=tree.config)
    except UsageError:  # several trees: nothing is changed in any
        return tree.path or os.curdir
    except CkptToolError:
        return None
    return found.storage.root if found.layout.is_tree else None


def _whole(judge: Callable[[str], bool]) -> Callable[[ByteSource], bool]:
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


def _is_gitlab(text: str) -> bool:
    document: Any = json.loads(text)
    return isinstance(document, list) and all(
        isinstance(each, dict) and str(each.get("check_name")).startswith("ckpttool/") for each in document
    )


def _is_markdown(text: str) -> bool:
    return _SUMMARY.match(text) is not None and all(_ROW.match(line) for line in text.split("\n")[1:])


def _is_github(text: str) -> bool:
    *annotations, verdict = text.rstrip("\n").split("\n")
    return _VERDICT.match(verdict) is not None and all(_ANNOTATION.match(line) for line in annotations)


def assert_page_replaceable(path: str, form: PageForm, *, tree: TreeQuestion, as_json: bool) -> None:
    """Refuse a target that is not ours, before the tree is looked at for what cannot be written.

    Raises:
        UsageError: It lies in the tree, its folder is not there, or something else stands in its place; or two results
            would go to stdout.
    """
    if path == STDOUT:
        if as_json:
            raise UsageError("--output - and --json both write to stdout: name a file")
        return
    root = _root_of(tree)
    if root is not None and _lies_under(path, root):
        raise UsageError(f"--output {path!r} lies in the checkpoint tree, in which nothing is changed")
    begins = _PAGES[form.value]
    _assert_replaceable(
        path, option="--output", is_ours=_whole(lambda text: begins.match(text) is not None), what="report"
    )


_PAGES = {
    "html": re.compile(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="generator" content="ckpttool report '
    ),
    "markdown": re.compile("<!-- ckpttool report -->\n## ckpttool report: "),
}
"""How a page of ours begins."""


STDOUT = "-"
"""As a file to write."""


def write_page(path: str, form: PageForm, answer: TreeReport, *, as_json: bool) -> None:
    """Write a report to a file, and say in a line what the answer is, or as JSON all of it; for `-` to stdout.

    Raises:
        CkptToolError: It could not be written.
    """
    from ckpttool.api.reports import page
    from ckpttool.cli import output
    from ckpttool.render.answers.plan import document
    from ckpttool.render.json import pieces
    from ckpttool.render.page.content import lead

    text = page(answer, form)
    if path == STDOUT:
        output.result(text)
        return
    from ckpttool.write.files import replace

    replace(path, (text + "\n").encode("utf-8", errors="backslashreplace"), overwrite=True, backup=False)
    if as_json:
        output.result(*pieces(document(answer.resolution)))
    else:
        output.result(f"{lead(answer).headline}\nWrote {shown(path)}")


def assert_stats_replaceable(path: str, tree: Tree) -> None:
    """Refuse a target that is not ours, before hours of reading are spent on what cannot be written.

    Raises:
        UsageError: It lies in the tree, its folder is not there, or something else stands in its place.
    """
    if tree.layout.is_tree and _lies_under(path, tree.inventory.root):
        raise UsageError(f"--stats {path!r} lies in the checkpoint tree, in which verify changes nothing")
    _assert_replaceable(path, option="--stats", is_ours=_holds_numbers, what="numbers")


def write_stats(path: str, answer: Verification) -> None:
    """Write each tensor's numbers to a file.

    Raises:
        CkptToolError: It could not be written.
    """
    from ckpttool.render.answers.verdicts import stats_lines
    from ckpttool.write.files import replace

    replace(path, stats_lines(answer.verdicts).encode("ascii"), overwrite=True, backup=False)


def assert_numbers_replaceable(path: str, asked: str | None) -> None:
    """As `assert_stats_replaceable`, of the numbers of a probe.

    Raises:
        UsageError: As there, or it is the file that is looked at.
    """
    from ckpttool.domain.question import TreeQuestion

    root = _root_of(TreeQuestion(path=asked))
    if (asked is not None and _same_file(path, asked)) or (root is not None and _lies_under(path, root)):
        raise UsageError(f"--stats {path!r} lies in the checkpoint tree, in which nothing is changed")
    _assert_replaceable(path, option="--stats", is_ours=_holds_probe, what="numbers")


def write_numbers(path: str, answer: Fp8Probe) -> None:
    """Write each tensor's numbers to a file.

    Raises:
        CkptToolError: It could not be written.
    """
    from ckpttool.render.answers.fp8_probe import stats_lines
    from ckpttool.write.files import replace

    replace(path, "".join(stats_lines(answer)).encode("ascii"), overwrite=True, backup=False)


def _holds_probe(source: ByteSource) -> bool:
    first = json.loads(source.read(0, min(source.stamp.size, _FIRST_LINE)).partition(b"\n")[0])
    return isinstance(first, dict) and {"name", "recipes"} <= first.keys()


def _holds_numbers(source: ByteSource) -> bool:
    line = source.read(0, min(source.stamp.size, _FIRST_LINE)).partition(b"\n")[0]
    first = json.loads(line)
    return isinstance(first, dict) and {"checkpoint", "tensor"} <= first.keys()


def _assert_replaceable(path: str, *, option: str, is_ours: Callable[[ByteSource], bool], what: str) -> None:
    """Refuse a target that is not ours, before anything is done for what cannot be written.

    Args:
        path: The target.
        option: Whose it is.
        is_ours: Tells from the content of a file that holds some.
        what: We write there, in the plural.

    Raises:
        UsageError: Its folder is not there, or something else stands in its place.
    """
    target = Path(path)
    assert_folder(path, option=option)
    if os.path.lexists(path) and not _is_ours(target, is_ours):
        raise UsageError(f"{option} {path!r} exists and holds no {what} of ours; name a new file")


def _lies_under(path: str, root: str) -> bool:
    """Tell whether a path is in a tree, by its name or by where links lead."""
    by_name = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))  # noqa: PTH100  links as they are
    return by_name or _resolved(path).is_relative_to(_resolved(root))


def _same_file(one: str, other: str) -> bool:
    """Tell whether two paths are one file, which need not be there yet."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return _resolved(one) == _resolved(other)


def _resolved(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):  # a loop of links, which what stands in the target's place is then told for
        return Path(os.path.abspath(path))  # noqa: PTH100  as above


def _is_ours(target: Path, is_ours: Callable[[ByteSource], bool]) -> bool:
    """Tell whether a file begins with one of our lines; an empty one holds nothing that could be lost."""
    if target.is_symlink():
        return False
    try:
        with LocalStorage(str(target.parent)).open(target.name) as source:
            return source.stamp.size == 0 or is_ours(source)
    except (OSError, ValueError, RecursionError):
        return False


_IS_OURS: dict[ReportFormat, Callable[[str], bool]] = {
    ReportFormat.JSON: _is_json,
    ReportFormat.GITHUB: _is_github,
    ReportFormat.JUNIT: _is_junit,
    ReportFormat.SARIF: _is_sarif,
    ReportFormat.GITLAB: _is_gitlab,
    ReportFormat.MARKDOWN: _is_markdown,
}
