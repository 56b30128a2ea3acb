"""The command `ckpttool lint`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from ckpttool.core.commands import output, reports
from ckpttool.core.commands.options import OF_A_TREE, DryRun, Verbose, exits, grouped
from ckpttool.core.commands.reports import ReportOptions
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.preflight import Lint
from ckpttool.core.domain.view import View
from ckpttool.core.findings import Row
from ckpttool.core.render.answers import preflight as texts

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|DIR...", help="Training configs, or folders to search for them.", rich_help_panel="Arguments"
    ),
]
Fix = Annotated[bool, typer.Option("--fix", help="Fix mistakes that are safe to fix, and report the others.")]
SkipForeign = Annotated[
    bool, typer.Option("--skip-foreign", help="Skip files that are not training configs.", rich_help_panel="Launch")
]
Diff = Annotated[bool, typer.Option("--diff", help="Show what --fix would change, without writing.")]


@exits({0: "No problem was found.", 10: "Training would not start or not behave as intended.", 14: OF_A_TREE[14]})
@grouped
def lint_config(
    *,
    files: Files,
    report: ReportOptions,
    fix: Fix = False,
    diff: Diff = False,
    skip_foreign: SkipForeign = False,
    verbose: Verbose = False,
    dry_run: DryRun = False,
) -> None:
    """Check training configs for mistakes that trainers report late, or never.

    Does not read checkpoints, so it suits a pre-commit hook; `ckpttool preflight` also checks the checkpoints. To
    accept a finding, add the comment `# ckpttool: allow CODE` on its line or the line above.

    --fix changes only settings with exactly one correct value, such as `eps: 1e-8`, and preserves every other byte.

    Example: ckpttool lint pretrain.yaml
    """
    from ckpttool.core.verbs import configs

    reports.assert_reports_replaceable(report.files(), inputs=report.existing(*files))
    allowed, view = report.allowed(), View(everything=verbose)
    check = partial(configs.lint_config, files, allowed=allowed, skip_foreign=skip_foreign, view=view)
    raise typer.Exit(reports.show(checked(check, allowed, fix=fix, diff=diff or (fix and dry_run)), report))


def checked(check: Callable[[], Lint], allowed: Sequence[Row], *, fix: bool, diff: bool) -> Lint:
    """Check configs, and fix them first if requested; with `diff` print the changes instead, and end the command.

    Raises:
        Exit: The changes were printed.
    """
    from ckpttool.core.verbs.fixing import fix_config

    answer = check()
    if diff:
        output.result(texts.diff(fix_config(answer, allowed=allowed)))
        raise typer.Exit(answer.exit_code)
    if fix and (fixed := fix_config(answer, allowed=allowed, apply=True)):
        return replace(check(), fixed=fixed)
    return answer
