"""Correct settings in configs that have exactly one right value."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.preflight import FixedConfig, Lint
from ckpttool.core.domain.settings import KeyPath, Value
from ckpttool.core.errors import CkptToolError
from ckpttool.core.formats.safe_yaml import parse_document, settings_of
from ckpttool.core.render.yaml_edit import with_values
from ckpttool.core.verbs.configs import read_base
from ckpttool.trainers.registry import trainer_named

if TYPE_CHECKING:
    from ckpttool.core.domain.settings import RunConfig, SafeFix


def fix_config(answer: Lint, *, allowed: Iterable[Row] = (), apply: bool = False) -> tuple[FixedConfig, ...]:
    """Correct the settings that have one right value, without changing comments, order or any other byte.

    Args:
        answer: The answer of `lint_config`; its files are read again.
        allowed: Findings that the user accepts, which are not corrected; nor are findings that a comment allows.
        apply: Whether to write the files, each atomically; otherwise nothing is changed.

    Returns:
        The configs with settings to correct.

    Raises:
        CkptToolError: A config could not be read or written; the configs before it are fixed.
    """
    from ckpttool.core.write.files import replace

    accepted = frozenset(allowed)
    fixes = [_fixed(check.name, accepted) for check in answer.checks if check.stopped is None]
    changed = tuple(fix for fix in fixes if fix.fixes)
    for fix in changed if apply else ():
        replace(fix.path, fix.after.encode("utf-8"), overwrite=True, backup=False)
    return changed


def _fixed(path: str, accepted: Collection[Row]) -> FixedConfig:
    base = read_base(path, ())
    silenced = {(finding.code, finding.line) for finding in base.silenced}
    wanted_fixes = {
        fix.key: fix
        for fix in _safe_fixes(base.run)
        if fix.code not in accepted and (fix.code, fix.line) not in silenced
    }
    text = base.run.text
    after, done = with_values(text, {key: fix.value for key, fix in wanted_fixes.items()})
    _assert_only_these_values(text, after, {key: wanted_fixes[key].value for key in done}, path)
    fixes = sorted((wanted_fixes[key] for key in done), key=lambda fix: fix.line)
    return FixedConfig(path=path, before=text, after=after, fixes=tuple(fixes))


def _assert_only_these_values(before: str, after: str, values: dict[KeyPath, str], path: str) -> None:
    """Check that the new text parses like the old text with only these values changed."""
    old, new = _values(before, path), _values(after, path)
    old |= {key: _values(f"a: {value}", path)["a",] for key, value in values.items()}
    if repr(old) != repr(new):  # distinguishes True from 1, and 1 from 1.0
        raise CkptToolError(
            f"{path!r} was not changed, because the fixed text would not read back correctly; fix it by hand"
        )


def _values(text: str, path: str) -> dict[KeyPath, Value]:
    settings = settings_of(parse_document(text.encode("utf-8"), where=path), path=path)
    return {entry.key: entry.value for entry in settings.entries}


def _safe_fixes(config: RunConfig) -> tuple[SafeFix, ...]:
    """Return the settings of a config with one right value, according to its own trainer's rules."""
    reader = trainer_named(config.trainer).configs
    return () if reader is None else reader.fixes(config)
