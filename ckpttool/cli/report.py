"""`ckpttool report`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output, output_files
from ckpttool.cli.engine_options import EngineOptions
from ckpttool.cli.grouped import grouped
from ckpttool.cli.log_options import EvidenceOptions
from ckpttool.cli.options import ChoiceOptions, ConfigPath, DataOptions, Quiet, TreeOptions
from ckpttool.cli.resolve import SimulateOptions, Strict
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.tree_report import PageForm, ReportQuestion

Output = Annotated[
    str, typer.Option("--output", metavar="FILE", help="Where to write it: new, or an earlier report; - for stdout.")
]
Form = Annotated[
    PageForm | None, typer.Option("--format", help="For a browser or a comment. Default: by FILE's name, else html.")
]
KeepLast = Annotated[int | None, typer.Option(min=1, metavar="N", help="Also say what `prune --keep-last N` would do.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """What is on the page beside the answer, and where it goes."""

    output: Output
    form: Form = None
    keep_last: KeepLast = None
    strict: Strict = False
    json: Annotated[bool, typer.Option("--json", help="Print the answer as `resolve --json` does.")] = False

    @property
    def page_form(self) -> PageForm:
        """How the page is written: as asked, else by the file's name."""
        is_markdown = self.output.lower().endswith((".md", ".markdown"))
        return self.form or (PageForm.MARKDOWN if is_markdown else PageForm.HTML)

    def question(self, tree: api.TreeQuestion, choice: api.ResumeQuestion, data: api.DataQuestion) -> ReportQuestion:
        """Ask the library."""
        return ReportQuestion(
            tree=tree,
            choice=choice,
            data=data,
            keep_last=self.keep_last,
            strict=self.strict,
        )


@grouped
def report(
    *,
    tree: TreeOptions,
    choice: ChoiceOptions,
    logs: EvidenceOptions,
    data: DataOptions,
    page: PageOptions,
    engine: EngineOptions,
    config: ConfigPath = None,
    own: SimulateOptions,
    quiet: Quiet = False,
) -> None:
    """Write one page of all that is known, to look at and to send.

    The answer of `resolve` first, then every rank of every checkpoint, the norms of the training log, what was found
    and what to do, the disk. Asks for nothing: no script, no font, no network. Looks at all checkpoints.

    Example: ckpttool report ./output --output report.html
    """
    question = page.question(
        tree.question(config=config), choice.question(logs.question()), data.question(sink_size=tree.sink_size)
    )
    output_files.assert_page_replaceable(page.output, page.page_form, tree=question.tree, as_json=page.json)
    with engine.reading(quiet=quiet):
        answer = api.survey(question, own=own.simulation)
    output.looking_at(answer.resolved_from, quiet=quiet)
    output_files.write_page(page.output, page.page_form, answer, as_json=page.json)
    raise typer.Exit(answer.resolution.exit_code)
