"""`ckpttool lint-config`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output_files, reports
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import Verbose
from ckpttool.cli.reports import ReportOptions
from ckpttool.domain.view import View

Files = Annotated[
    list[str], typer.Argument(metavar="FILE|DIR...", help="Training configs, and folders with some at any depth.")
]


@grouped
def lint_config(*, files: Files, report: ReportOptions, verbose: Verbose = False) -> None:
    """Say what in configs MindFormers finds wrong late or never.

    Looks at no checkpoint. Made for a pre-commit hook; `ckpttool preflight` does the same and looks at the
    checkpoints as well. A comment in the config, `# ckpttool: allow CODE`, on the line or above it, silences a finding.

    Example: ckpttool lint-config pretrain.yaml
    """
    output_files.assert_reports_replaceable(report.files(), inputs=files)
    answer = api.lint_config(files, allowed=report.allowed(), view=View(everything=verbose))
    raise typer.Exit(reports.show(answer, report))
