"""The command `ckpttool lint`: configs, FP8 settings and Ascend's detection strings, recognized by content."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from ckpttool.core.commands import reports
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.lint_config import Diff, Fix, SkipForeign, checked
from ckpttool.core.commands.options import OF_A_TREE, DryRun, Format, Verbose, exits, grouped
from ckpttool.core.commands.reports import ReportFormat, ReportOptions
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.preflight import Lint
from ckpttool.core.domain.view import View
from ckpttool.core.errors import CkptToolError, ExitCode, UsageError
from ckpttool.core.findings import Row
from ckpttool.core.formats.config_text import TOML, ConfigFile
from ckpttool.core.formats.safe_yaml import read_head
from ckpttool.core.verbs.configs import lint_config, may_be_config
from ckpttool.fp8.commands import EngineVersion, LayerNames
from ckpttool.fp8.frameworks.lint import is_without
from ckpttool.fp8.frameworks.settings import read_settings, settings_below
from ckpttool.fp8.model.settings import Fp8Input, Fp8Settings
from ckpttool.fp8.verbs.lint import lint_read
from ckpttool.health.commands_asd import Dialect
from ckpttool.health.verbs.asd import check_asd

_DETECTION = re.compile(r"\s*(?:[A-Z_]+=)?\s*[a-z_]\w*\s*:(?!//|\\).*", re.DOTALL)
"""Form of the value: `enable:true,cooldown:5`, or with its variable: `NPU_ASD_CONFIG=enable:true`."""
_CONFIG_ENDINGS = (".yaml", ".yml", ".json", TOML)

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|DIR|STRING...",
        help="Training configs, files with FP8 settings, folders to search for both, or one value of NPU_ASD_CONFIG.",
        rich_help_panel="Arguments",
    ),
]


@exits(
    {
        0: "No problem was found.",
        10: "Training would not start or not behave as intended.",
        14: OF_A_TREE[14],
        15: OF_A_TREE[15],
    }
)
@grouped
def lint(
    *,
    inputs: Inputs,
    report: ReportOptions,
    fix: Fix = False,
    diff: Diff = False,
    skip_foreign: SkipForeign = False,
    te_version: EngineVersion = None,
    layers: LayerNames = None,
    dialect: Dialect = None,
    verbose: Verbose = False,
    dry_run: DryRun = False,
) -> None:
    """Check configs for mistakes that trainers report late, or never.

    Reads training configs, FP8 settings (in configs, launch scripts, or logs with printed arguments), and the value of
    NPU_ASD_CONFIG, and recognizes each by its content. Does not read checkpoints, so it suits a pre-commit hook. To
    accept a finding, add the comment `# ckpttool: allow CODE` on its line or the line above.

    --fix changes only settings with exactly one correct value, such as `eps: 1e-8`, and preserves every other byte.

    Example: ckpttool lint pretrain.yaml
    """
    if len(inputs) == 1 and not os.path.lexists(inputs[0]) and _DETECTION.fullmatch(inputs[0]):
        if report.report or report.fmt not in {ReportFormat.TABLE, ReportFormat.JSON}:
            raise UsageError("for a value of NPU_ASD_CONFIG, --report is not available, and --format is table or json")
        raise typer.Exit(show(check_asd(inputs[0], dialect), Format(report.fmt.value)))
    reports.assert_reports_replaceable(report.files(), inputs=report.existing(*inputs))
    allowed, view = report.allowed(), View(everything=verbose)
    settings = {path: read for path in inputs if (read := _settings(path)) is not None}
    scripts = [path for path, read in settings.items() if _is_script(path, read)]
    with_fp8 = [path for path, read in settings.items() if path in scripts or not is_without(read)]
    files = [path for path in inputs if path not in scripts]
    check = partial(_configs, files, with_fp8, allowed=allowed, skip_foreign=skip_foreign, view=view)
    answer = checked(check, allowed, fix=fix, diff=diff or (fix and dry_run))
    check_fp8 = partial(lint_read, allowed=allowed, te_version=te_version, layers=layers, view=view)
    if with_fp8:
        answer = _with_fp8(answer, check_fp8({path: settings[path] for path in with_fp8}))
    for folder in filter(os.path.isdir, inputs):
        for path, read in settings_below(folder):  # named files describe one run; those of a folder need not
            if path not in settings and not is_without(read):
                answer = _with_fp8(answer, check_fp8({path: read}), folder=folder)
    raise typer.Exit(reports.show(answer, report))


def _with_fp8(answer: Lint, fp8: Lint, *, folder: str | None = None) -> Lint:
    """Add checks of FP8 settings; a folder with such settings needs no training config."""
    before = [check for check in answer.checks if check.name != folder or check.stopped is not ExitCode.USAGE]
    names = {check.name for check in before}
    checks = [replace(check, name=f"{check.name} (FP8)") if check.name in names else check for check in fp8.checks]
    foreign = tuple(path for path in answer.foreign if path not in {check.name for check in fp8.checks})
    return replace(answer, checks=(*before, *checks), foreign=foreign)


def _settings(path: str) -> Fp8Settings | None:
    """Return the FP8 settings of a file, or None if they cannot be read."""
    if not os.path.isfile(path):  # noqa: PTH113  as the user gave it
        return None
    try:
        return read_settings(path)
    except CkptToolError:
        return None


def _is_script(path: str, settings: Fp8Settings) -> bool:
    """Return whether a file is a log with printed arguments or a script with arguments, and not a training config.

    A config that cannot be parsed may have arguments in a comment. It stays a config.
    """
    if settings.kind not in {Fp8Input.DUMP, Fp8Input.ARGUMENTS}:
        return False
    head = read_head(path)
    try:
        ConfigFile(head, path=path).document  # noqa: B018  whether it can be parsed
    except CkptToolError:
        return settings.kind is Fp8Input.DUMP or not (path.endswith(_CONFIG_ENDINGS) or may_be_config(head))
    return False


def _configs(
    files: Sequence[str], with_fp8: Sequence[str], *, allowed: Sequence[Row], skip_foreign: bool, view: View
) -> Lint:
    """Check the training configs among the files. A file with FP8 settings need not be a training config."""
    rest = [path for path in files if path not in with_fp8]
    checked = lint_config(rest, allowed=allowed, skip_foreign=skip_foreign, view=view)
    both = lint_config([path for path in files if path in with_fp8], allowed=allowed, skip_foreign=True, view=view)
    return replace(checked, checks=(*checked.checks, *both.checks), command="lint")
