"""Checks of FP8 settings from any source with every rule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ckpttool.core.decide import preflight as judge
from ckpttool.core.decide.inline_allow import part
from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.preflight import Check, Lint, Reason
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import CkptToolError, ForeignConfigError
from ckpttool.core.render.answers import preflight_summaries as summaries
from ckpttool.core.verbs.configs import unusable
from ckpttool.fp8.frameworks.lint import is_without, lint, read_layers, version
from ckpttool.fp8.frameworks.settings import read_settings
from ckpttool.fp8.frameworks.view import OtherFacts
from ckpttool.fp8.model.settings import Fp8Settings

_NONE = "FP8 is not enabled in it"


def fp8_lint(
    paths: str | os.PathLike[str] | Sequence[str],
    *,
    allowed: Iterable[Row] = (),
    te_version: str | None = None,
    layers: str | None = None,
    view: View = USUAL,
) -> Lint:
    """Check FP8 settings for known problems and for settings without effect.

    Args:
        paths: Logs with the trainer's printed arguments, scripts with arguments, configs, and configs of debug
            features, distinguished by content. Together they describe one run.
        allowed: Findings that the user accepts.
        te_version: Version of Transformer Engine, such as `2.13`, or None if unknown.
        layers: A file with layer names, or None to try the usual names.
        view: The view for display.

    Returns:
        One check per file. A file that cannot be used at all is a finding too, with its exit code.

    Raises:
        UsageError: The version or the file of layers is invalid.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = (os.fspath(paths),)
    read: dict[str, Fp8Settings | CkptToolError] = {}
    for path in paths:
        try:
            read[path] = read_settings(path)
        except CkptToolError as error:
            read[path] = error
    return lint_read(read, allowed=allowed, te_version=te_version, layers=layers, view=view)


def lint_read(
    read: Mapping[str, Fp8Settings | CkptToolError],
    *,
    allowed: Iterable[Row] = (),
    te_version: str | None = None,
    layers: str | None = None,
    view: View = USUAL,
) -> Lint:
    """Check settings that were already read, by path. Pass the error for settings that could not be read.

    Raises:
        UsageError: The version or the file of layers is invalid.
    """
    extras = OtherFacts(
        engine=None if te_version is None else version(te_version),
        layers=None if layers is None else read_layers(layers),
    )
    usable = {path: settings for path, settings in read.items() if isinstance(settings, Fp8Settings)}
    problems = dict(zip(usable, lint(tuple(usable.values()), extras), strict=True))
    checks = []
    for path, settings in read.items():
        if isinstance(settings, CkptToolError):
            checks.append(replace(unusable(path, settings, remedy=_remedy(path, settings)), name=path))
            continue
        parted = part(problems[path], settings.text, path=path)
        findings = judge.allow(parted.findings, allowed)
        checks.append(
            Check(
                name=path,
                summary=_NONE
                if is_without(settings) and not findings
                else summaries.config_summary(findings, parted.silenced),
                reasons=tuple(Reason(finding=finding, file=path) for finding in findings),
                allowed=tuple(Reason(finding=finding, file=path) for finding in parted.silenced),
            )
        )
    return Lint(checks=tuple(checks), view=view, command="fp8 lint")


def _remedy(path: str, error: CkptToolError) -> str | None:
    if not os.path.isfile(path):
        return "give an existing file"
    return "give a file that sets FP8" if isinstance(error, ForeignConfigError) else None
