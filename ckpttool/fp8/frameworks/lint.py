"""Rules that find FP8 settings without the intended effect or with known problems, in and across files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckpttool.core.decide.lint_engine import Rule, findings, problems
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.domain.settings import dotted
from ckpttool.core.errors import UsageError
from ckpttool.core.logs.base import lines_with
from ckpttool.core.logs.reading import blocks_of
from ckpttool.fp8.frameworks.lint_debug import DEBUG
from ckpttool.fp8.frameworks.lint_layers import LAYERS
from ckpttool.fp8.frameworks.lint_recipe import RECIPE
from ckpttool.fp8.frameworks.settings import ELSEWHERE, KEYS, MENTIONED
from ckpttool.fp8.frameworks.view import Fp8View, OtherFacts, Version
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.settings import Fp8Input, Fp8Settings

_MOST_LAYERS = 100_000
_LOGGED = re.compile(rb"\b(?:LAYER=|Assigned layer name: )")
_LAYER = re.compile(rb"\b(?:LAYER=|Assigned layer name: )(?P<name>[^\s:,=]{1,500})")
_NAME = re.compile(rb"[A-Za-z_][\w.-]{0,500}")
_VERSION = re.compile(r"(?:core_)?v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:[.+-].*)?")


def version(text: str, option: str = "--te-version") -> Version:
    """Parse a version in any usual form: `2.13`, `v2.4`, `2.4.0+cu12`, `core_v0.16.0`.

    Raises:
        UsageError: The text is not a version.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r} is not a version; write it as 2.13")
    return tuple(map(int, match[1].split(".")))


def read_layers(path: str) -> tuple[str, ...]:
    """Read layer names from a file with one name per line, or from a log of debug features.

    Raises:
        UsageError: The file cannot be read, or contains no name.
    """
    layers: dict[str, None] = {}
    names: dict[str, None] = {}
    for block in blocks_of(path):
        if isinstance(block, LogProblem):
            if block.ends_the_log:
                raise UsageError(f"--layers {path!r} {block.reason}")
            continue
        for _, line in lines_with(block, _LOGGED):
            if (match := _LAYER.search(line)) is not None:
                layers[match["name"].decode("utf-8", "replace")] = None
        if not layers:
            lines = (line.strip() for line in block.data.splitlines())
            names.update((line.decode("utf-8", "replace"), None) for line in lines if _NAME.fullmatch(line))
        if max(len(layers), len(names)) > _MOST_LAYERS:
            raise UsageError(f"--layers {path!r} has more names than a model can have layers: {_MOST_LAYERS:,}")
    if not layers and not names:
        raise UsageError(f"--layers {path!r} has no names; write one per line, or give a log of debug features")
    return tuple(layers or names)


def lint(read: Sequence[Fp8Settings], extras: OtherFacts) -> tuple[tuple[Finding, ...], ...]:
    """Check settings with every rule.

    Args:
        read: All given files, because some rules compare files.
        extras: Further facts. Facts in the files are added.

    Returns:
        The findings about each file, in the order of the file.
    """
    views = [Fp8View(settings, extras) for settings in read]
    recipes = [frozenset(scope.recipe for scope in view.scopes if scope.recipe is not None) for view in views]
    reported = []
    for number, settings in enumerate(read):
        other_places = [place for place in range(len(read)) if place != number]
        file_extras = replace(
            extras,
            recipes=frozenset[Recipe]().union(*(recipes[place] for place in other_places)),
            flags=any(read[place].kind in {Fp8Input.DUMP, Fp8Input.ARGUMENTS} for place in other_places),
        )
        view = Fp8View(settings, file_extras)
        reported.append(findings(view, problems(view, _rules(settings.kind)), path=settings.settings.path))
    return tuple(reported)


def is_without(read: Fp8Settings) -> bool:
    """Return whether a file explicitly leaves FP8 off."""
    if read.kind is Fp8Input.DEBUG or Fp8View(read, OtherFacts()).scopes:
        return False
    foreign = (entry for entry in read.settings.entries if entry.key[-1] not in KEYS)
    return read.kind is Fp8Input.DUMP or not any(
        entry.key[-1] in ELSEWHERE or MENTIONED.search(f"{dotted(entry.key)} {entry.value}") for entry in foreign
    )


def _rules(kind: Fp8Input) -> Iterable[Rule[Fp8View]]:
    return DEBUG if kind is Fp8Input.DEBUG else (*RECIPE, *LAYERS)
