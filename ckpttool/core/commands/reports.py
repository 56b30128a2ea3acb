"""Output of go or no-go in the requested formats: for people, scripts and CI services."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckpttool import __version__
from ckpttool.core.commands import answers, completing, output
from ckpttool.core.commands.options import Format
from ckpttool.core.commands.output_files import assert_outside, assert_replaceable, root_of, same_file, whole
from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.preflight import Lint, Preflight, Reported
from ckpttool.core.errors import CkptToolError, ExitCode, UsageError

if TYPE_CHECKING:
    from ckpttool.core.domain.question import TreeQuestion

Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CODE",
        autocompletion=completing.codes,
        help="Accept findings with this code; repeatable.",
        rich_help_panel="Launch",
    ),
]


class ReportFormat(str, Enum):
    """Output format of a report."""

    TABLE = "table"
    JSON = "json"
    GITHUB = "github"
    JUNIT = "junit"
    SARIF = "sarif"
    GITLAB = "gitlab"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The output formats, and the accepted findings."""

    fmt: Annotated[
        ReportFormat,
        typer.Option("--format", help="Output format, for people, scripts, GitHub, CI servers or job pages."),
    ] = ReportFormat.TABLE
    report: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT=FILE",
            help="Also write a report, as in junit=out.xml, to a new file or over an earlier report; repeatable.",
        ),
    ] = None
    allow: Allow = None

    def allowed(self) -> tuple[Row, ...]:
        """Return the findings that `--allow` accepts."""
        return codes(self.allow)

    def existing(self, *configs: str | None, advice: str = "give the training config") -> list[str]:
        """Return the named files. A missing file is an error, unless a machine-readable report will show it.

        Raises:
            UsageError: A file does not exist, and only a table was requested.
        """
        named = [path for path in configs if path]
        missing = [path for path in named if not os.path.lexists(path)]
        if missing and self.fmt is ReportFormat.TABLE and not self.report:
            raise UsageError(f"not found: {', '.join(map(repr, missing))}; {advice}")
        return named

    def files(self) -> tuple[tuple[ReportFormat, str], ...]:
        """Parse `--report FORMAT=FILE`; call it before any work.

        Raises:
            UsageError: A report has no file name, or its format cannot be written to a file.
        """
        return tuple(_file(text) for text in self.report or ())


def codes(texts: list[str] | None) -> tuple[Row, ...]:
    """Parse `--allow CODE`.

    Raises:
        UsageError: A code is unknown, or it means that there is nothing to launch.
    """
    return tuple(_code(text) for text in texts or ())


def _code(text: str) -> Row:
    from ckpttool.core.extensions import row_of, rows

    with suppress(ValueError):
        if row_of(text).may_be_allowed:
            return row_of(text)
    from difflib import get_close_matches

    close = get_close_matches(text, [row.value for row in rows() if row.may_be_allowed], n=2)
    advice = f"did you mean {' or '.join(close)}?" if close else "`ckpttool explain` lists all codes"
    raise UsageError(f"--allow {text}: not the code of a finding that can be allowed; {advice}")


def _file(text: str) -> tuple[ReportFormat, str]:
    format_name, _, path = text.partition("=")
    formats = [report_format.value for report_format in ReportFormat if report_format is not ReportFormat.TABLE]
    if format_name not in formats or not path:
        raise UsageError(
            f"--report takes FORMAT=FILE with one of {', '.join(formats)}, such as junit=out.xml, not {text!r}"
        )
    if path == "-":
        raise UsageError(f"--report {text}: a file is required; use --format {format_name} for stdout")
    return ReportFormat(format_name), path


def show(answer: Preflight | Lint | Reported, options: ReportOptions) -> ExitCode:
    """Write the files, then the result, so that a reader of the result can rely on the files unless an error follows.

    Raises:
        CkptToolError: A file could not be written. The result is still valid, and is shown first.
    """
    failed = None
    for fmt, path in () if output.is_dry_run() else options.files():
        from ckpttool.core.write.files import append, replace

        content = (_text(answer, fmt) + "\n").encode("utf-8")
        try:
            if is_appended(fmt, path):
                append(path, b"\n" + content)  # an unfinished paragraph would absorb the heading
            else:
                replace(path, content, overwrite=True, backup=False)
        except CkptToolError as error:
            failed = failed or error
    if options.fmt is ReportFormat.TABLE:
        answers.show(answer, Format.TABLE)
    else:
        output.result(_text(answer, options.fmt))
    if failed is not None:
        raise failed
    return answer.exit_code


def _text(answer: Preflight | Lint | Reported, fmt: ReportFormat) -> str:
    """Format a report in any format except the table, which is drawn for a terminal."""
    from ckpttool.core.render.answers import texts_of
    from ckpttool.core.render.answers.preflight import ranks_of, verdict
    from ckpttool.core.render.json import dumps

    if fmt is ReportFormat.JSON:
        return dumps(texts_of(answer).document(answer))
    if fmt is ReportFormat.GITHUB:
        from ckpttool.core.render.github import annotate

        return annotate(
            answer.checks, verdict(answer), is_file=os.path.isfile, world=ranks_of(answer), view=answer.view
        )
    if fmt is ReportFormat.JUNIT:
        from ckpttool.core.render.junit import junit

        name = "preflight" if isinstance(answer, Preflight) else answer.command
        return junit(answer.checks, f"ckpttool {name}", view=answer.view)
    if fmt is ReportFormat.GITLAB:
        from ckpttool.core.render.gitlab import code_quality

        return dumps(code_quality(answer.checks, place=_place(answer)))
    if fmt is ReportFormat.MARKDOWN:
        from ckpttool.core.render.markdown import summary

        return summary(answer)
    from ckpttool.core.render.sarif import sarif

    return dumps(sarif(answer.checks, place=_place(answer), version=__version__))


def _place(answer: Preflight | Lint | Reported) -> str:
    """Return the location of results that are not about a file."""
    if isinstance(answer, Reported):
        return answer.place
    return answer.root or answer.config or "." if isinstance(answer, Preflight) else answer.checks[0].name


# --- files that may be overwritten ---------------------------------------------------------------------------------

_SCHEMAS = ("ckpttool/preflight/", "ckpttool/postflight/", "ckpttool/lint/")
_SUITE = re.compile(
    r"""<\?xml [^>]*>\s*<testsuites name="ckpttool"[^>]*>\s*<testsuite name="ckpttool [a-z0-9 -]+"[^>]*>"""
)
_ANNOTATION = re.compile(r"::(error|notice) (file=[^,]*,)?(line=[0-9]+,)?title=ckpttool ")
_SUMMARY = re.compile(
    r"## ckpttool (preflight|postflight|lint|lint-config|fp8 lint): [^\n]*\n\n\| \| check \| what was seen \|\n"
)
_ROW = re.compile(r"\||and [0-9]+ other kinds$|$")
_VERDICT = re.compile(
    r"(NO-GO|GO|Resumed as planned|The resume is wrong): |Cannot tell|[0-9]+ configs?: nothing prevents"
)


def assert_reports_replaceable(
    files: Sequence[tuple[ReportFormat, str]], *, inputs: Iterable[str], tree: TreeQuestion | None = None
) -> None:
    """Reject a report path that ckpttool may not overwrite, before the check begins.

    Args:
        files: Format and path of each report.
        inputs: Files that the command reads.
        tree: The tree that is read, if any.

    Raises:
        UsageError: A report path is in the tree, is an input file, has no parent folder, is taken by another kind of
            file, or is used twice.
    """
    for (_, first), (_, second) in combinations(files, 2):
        if same_file(first, second):
            raise UsageError(f"--report …={second}: two reports cannot be written to one file")
    input_paths = tuple(inputs)
    root = root_of(tree) if tree is not None and files else None
    for fmt, target in files:
        form = fmt.value
        if any(same_file(target, input_path) for input_path in input_paths):
            raise UsageError(f"--report {form}={target} is one of the files to check; give another file")
        assert_outside(target, root, option=f"--report {form}")
        if not is_appended(fmt, target):
            assert_replaceable(
                target, option=f"--report {form}", is_ours=whole(_IS_OURS[fmt]), purpose=f"{form} report"
            )


def is_appended(fmt: ReportFormat, path: str) -> bool:
    """Return whether a report is appended to its file, such as the file that GitHub provides for a step's summary.

    Other text of the step in that file is preserved. No other file is appended to.
    """
    summary_path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return fmt is ReportFormat.MARKDOWN and summary_path != "" and same_file(path, summary_path)


def _is_json(text: str) -> bool:
    document = json.loads(text)
    return isinstance(document, dict) and str(document.get("schema")).startswith(_SCHEMAS)


def _is_sarif(text: str) -> bool:
    """Return whether a file is SARIF with a single run of ckpttool; several runs were combined by another tool."""
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
        isinstance(item, dict) and str(item.get("check_name")).startswith("ckpttool/") for item in document
    )


def _is_markdown(text: str) -> bool:
    return _SUMMARY.match(text) is not None and all(_ROW.match(line) for line in text.split("\n")[1:])


def _is_github(text: str) -> bool:
    *annotations, verdict = text.rstrip("\n").split("\n")
    return _VERDICT.match(verdict) is not None and all(_ANNOTATION.match(line) for line in annotations)


_IS_OURS: dict[ReportFormat, Callable[[str], bool]] = {
    ReportFormat.JSON: _is_json,
    ReportFormat.GITHUB: _is_github,
    ReportFormat.JUNIT: _is_junit,
    ReportFormat.SARIF: _is_sarif,
    ReportFormat.GITLAB: _is_gitlab,
    ReportFormat.MARKDOWN: _is_markdown,
}
