"""The command `ckpttool report`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import output
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, DryRun, Quiet, exits, grouped
from ckpttool.core.commands.output_files import assert_outside, assert_replaceable, root_of, whole
from ckpttool.core.commands.resolve import SimulateOptions
from ckpttool.core.commands.tree_options import ConfigPath, EngineOptions, from_here
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.errors import UsageError
from ckpttool.core.render.escape import shown
from ckpttool.report.model import PageForm, ReportQuestion

if TYPE_CHECKING:
    from ckpttool.core.domain.question import TreeQuestion
    from ckpttool.report.model import TreeReport

Output = Annotated[
    str, typer.Option("--output", metavar="FILE", help="File to write: a new file or an earlier report; - for stdout.")
]
Form = Annotated[
    PageForm | None, typer.Option("--format", help="Output format. Default: from the name of FILE, else html.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """The contents of the page in addition to the answer, and the output file."""

    output: Output
    form: Form = None
    json: Annotated[bool, typer.Option("--json", help="Print the JSON of `resolve --json`.")] = False

    @property
    def page_form(self) -> PageForm:
        """The output format as requested, else according to the file's name."""
        is_markdown = self.output.lower().endswith((".md", ".markdown"))
        return self.form or (PageForm.MARKDOWN if is_markdown else PageForm.HTML)


@exits(
    {
        0: "The page was written, and a checkpoint was chosen, even if newer ones were skipped.",
        10: "The page was written, but a newer checkpoint was skipped (--strict), or the loss exceeds the limit.",
        11: "The page was written, but there is no checkpoint to resume from.",
        **OF_A_TREE,
        16: OF_WRITING[16],
    }
)
@grouped
def report(
    *,
    question: ReportQuestion,
    page: PageOptions,
    engine: EngineOptions,
    config: ConfigPath = None,
    own: SimulateOptions,
    quiet: Quiet = False,
    dry_run: DryRun = False,
) -> None:
    """Write a report page with everything known about a tree.

    Checks all checkpoints. Shows the answer of `resolve`, every rank of every checkpoint, the norms in the training
    log, all findings with remedies, and the disk. The page works without scripts, web fonts or a network.

    Example: ckpttool report ./output --output report.html
    """
    tree = from_here(question.tree, config=config)
    question = replace(question, tree=tree, data=replace(question.data, sink_size=tree.steps_per_epoch))
    _assert_page_replaceable(page.output, page.page_form, tree=tree, as_json=page.json)
    with engine.reading(quiet=quiet):
        from ckpttool.report import verbs

        answer = verbs.survey(question, own=own.simulation)
    output.looking_at(answer.resolved_from, quiet=quiet)
    _write_page(page.output, page.page_form, answer, as_json=page.json, dry_run=dry_run)
    output.take(answer.resolution)
    raise typer.Exit(answer.resolution.exit_code)


def _assert_page_replaceable(path: str, form: PageForm, *, tree: TreeQuestion, as_json: bool) -> None:
    """Raise an error if the target is a file that ckpttool did not write, before the tree is read.

    Raises:
        UsageError: The target is in the tree, its folder does not exist, or something else has that path; or two
            results would go to stdout.
    """
    if path == _STDOUT:
        if as_json:
            raise UsageError("--output - and --json both write to stdout: name a file")
        return
    assert_outside(path, root_of(tree), option="--output")
    begins = _PAGES[form.value]
    assert_replaceable(
        path, option="--output", is_ours=whole(lambda text: begins.match(text) is not None), purpose="report"
    )


_PAGES = {
    "html": re.compile(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="generator" content="ckpttool report '
    ),
    "markdown": re.compile("<!-- ckpttool report -->\n## ckpttool report: "),
}
"""Patterns for the beginning of a page written by ckpttool."""

_STDOUT = "-"
"""The path for standard output."""


def _write_page(path: str, form: PageForm, answer: TreeReport, *, as_json: bool, dry_run: bool) -> None:
    """Write a report to a file (`-` for stdout), and print the answer in one line, or completely as JSON.

    Raises:
        CkptToolError: The report could not be written.
    """
    from ckpttool.core.render.answers.plan import document
    from ckpttool.core.render.json import pieces
    from ckpttool.report.page.content import lead
    from ckpttool.report.verbs import page

    text = page(answer, form)
    if path == _STDOUT:
        output.result(text)
        return
    from ckpttool.core.write.files import replace

    if not dry_run:
        replace(path, (text + "\n").encode("utf-8", errors="backslashreplace"), overwrite=True, backup=False)
    if as_json:
        output.result(*pieces(document(answer.resolution)))
    else:
        done = "Dry run, not written:" if dry_run else "Wrote"
        output.result(f"{lead(answer).headline}\n{done} {shown(path)}")
