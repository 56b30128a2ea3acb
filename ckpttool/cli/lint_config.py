"""`ckpttool lint-config`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output_files, reports
from ckpttool.cli.grouped import grouped
from ckpttool.cli.reports import ReportOptions

Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Training configs.")]


@grouped
def lint_config(*, files: Files, report: ReportOptions) -> None:
    """Say what in configs MindFormers finds wrong late or never.

    Looks at no checkpoint. Made for a pre-commit hook; `ckpttool preflight` does the same and looks at the
    checkpoints as well.

    Example: ckpttool lint-config pretrain.yaml
    """
    output_files.assert_reports_replaceable(report.files(), inputs=files)
    raise typer.Exit(reports.show(api.lint_config(files, allowed=report.allowed()), report))
