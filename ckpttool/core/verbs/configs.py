"""Read training configs, without checkpoints, and check them by every rule about configs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.core.decide import preflight as judge
from ckpttool.core.decide.inline_allow import part
from ckpttool.core.domain.finding import Code, Finding, Row, damage
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.preflight import Check, Lint, Reason
from ckpttool.core.domain.settings import RunConfig
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import CkptToolError, ConfigError, ExitCode, ForeignConfigError, UsageError
from ckpttool.core.formats.config_text import ConfigFile
from ckpttool.core.formats.safe_yaml import read_bytes, read_head
from ckpttool.core.render.answers import preflight_summaries as summaries
from ckpttool.trainers.registry import trainer_named, trainers

_ENDINGS = (".yaml", ".yml")


def parse_config(content: bytes, *, path: str, devices: int | None = None) -> RunConfig:
    """Parse a training config with the trainer that recognizes it.

    Args:
        content: The complete file.
        path: The path from the user.
        devices: Number of ranks that will be started, for configs that do not state this number.

    Raises:
        CkptToolError: The config cannot be used, or no trainer or several trainers recognise it.
    """
    file, configs, unread = ConfigFile(content, path=path), [], None
    for reader in filter(None, (trainer.configs for trainer in trainers())):
        try:
            configs.append(reader.read(file, devices=devices))
        except CkptToolError as error:  # another reader may accept a file that this one cannot parse
            unread = unread or error
    readable = [config for config in configs if config is not None]
    if len(readable) == 1:
        return readable[0]
    if readable:
        titles = " or for ".join(trainer_named(config.trainer).title for config in readable)
        raise UsageError(f"{path} could be a config for {titles}: remove the settings of all but one")
    raise unread or ForeignConfigError(
        f"{path} is not a training config that ckpttool recognizes; it reads configs for {_config_readers()}"
    )


def _config_readers() -> str:
    """Return the names of the trainers whose configs are read, for messages."""
    titles = [trainer.title for trainer in trainers() if trainer.configs_at is not None]
    return " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConfig:
    """A config that was read, with all findings about it."""

    run: RunConfig
    findings: tuple[Finding, ...]
    """The problems that rules and the reader found; problems that the user accepted are notes."""
    silenced: tuple[Finding, ...]
    """Findings that a comment in the config allows."""


def read_base(path: str, allowed: tuple[Row, ...], *, devices: int | None = None, starts: bool = True) -> BaseConfig:
    """Read the base config of a launch, and check it by all rules about configs.

    Args:
        path: The path from the user.
        allowed: Findings that the user accepts.
        devices: Total number of devices to be started; None if unknown.
        starts: Whether to judge a start, not only the config.

    Raises:
        CkptToolError: The config cannot be used.
    """
    run = parse_config(read_bytes(path), path=path, devices=devices)
    parts = part(_lint(run), run.text, path=path)
    if starts and trainer_named(run.trainer).launch is not None:  # in others, it may stop the start
        allowed = (*allowed, *(finding.code for finding in parts.findings if not finding.code.affects_start))
    return BaseConfig(run=run, findings=judge.allow(parts.findings, allowed), silenced=parts.silenced)


def read_or_check(
    path: str, allowed: tuple[Row, ...], *, devices: int | None = None, starts: bool = True
) -> BaseConfig | Check:
    """Read the base config as `read_base` does, but return a check if the config cannot be used."""
    try:
        return read_base(path, allowed, devices=devices, starts=starts)
    except CkptToolError as error:
        return unusable(path, error)


def config_check(path: str, config: BaseConfig | Check, *, name: str = "config") -> Check:
    """Return the findings about a config as a check."""
    if isinstance(config, Check):
        return replace(config, name=name)
    return Check(
        name=name,
        summary=summaries.config_summary(config.findings, config.silenced),
        reasons=tuple(Reason(finding=finding, file=path) for finding in config.findings),
        allowed=tuple(Reason(finding=finding, file=path) for finding in config.silenced),
    )


def lint_config(
    paths: str | os.PathLike[str] | Sequence[str],
    *,
    allowed: Iterable[Row] = (),
    skip_foreign: bool = False,
    view: View = USUAL,
) -> Lint:
    """Check training configs for mistakes that a trainer reports late, or never. Reads no checkpoint.

    Args:
        paths: Files, and folders, whose YAML files are checked recursively; hidden folders and links to folders are
            skipped.
        allowed: Findings that the user accepts.
        skip_foreign: Skip named files that are not training configs.
        view: The view for display.

    Returns:
        One check per config. An unusable file, or a folder without a training config, is a finding with an exit code.
        Other YAML files and inference configs are only counted in a folder; if named directly, they are findings unless
        they are to be skipped.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = (os.fspath(paths),)
    checks: dict[str, Check] = {}
    foreign: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):
            checks |= _in_folder(path, tuple(allowed), foreign)
        elif skip_foreign:
            checks |= _unless_foreign(path, tuple(allowed), foreign)
        else:
            checks[path] = config_check(path, read_or_check(path, tuple(allowed), starts=False), name=path)
    return Lint(checks=tuple(checks.values()), foreign=tuple(foreign), view=view)


def _in_folder(folder: str, allowed: tuple[Row, ...], foreign: dict[str, None]) -> dict[str, Check]:
    checks_by_name: dict[str, Check] = {}
    foreign_files: dict[str, None] = {}
    for path in _yaml_files(folder, checks_by_name):
        checks = _unless_foreign(path, allowed, foreign_files)
        if any(_trains_nothing(check) for check in checks.values()):
            foreign_files[path] = None  # inference configs in a folder do not start training
        else:
            checks_by_name |= checks
    foreign |= foreign_files
    if not checks_by_name:
        hint = f", but {counted(len(foreign_files), 'other YAML file')}" if foreign_files else ""
        finding = damage(
            Code.CONFIG_UNUSABLE,
            f"{folder!r} contains no training config{hint}",
            path=folder,
            remedy=f"give a folder with training configs, or config files; ckpttool reads configs for "
            f"{_config_readers()}",
        )
        checks_by_name[folder] = Check(
            name=folder,
            summary="no training config",
            reasons=(Reason(finding=finding, file=folder),),
            stopped=ExitCode.USAGE,
        )
    return checks_by_name


def _trains_nothing(check: Check) -> bool:
    return any(reason.finding.code is Code.NOT_A_TRAINING for reason in check.reasons)


def _unless_foreign(path: str, allowed: tuple[Row, ...], foreign: dict[str, None]) -> dict[str, Check]:
    try:
        # Templates, YAML with custom tags and long lists of packages cannot be read, and need not be.
        if may_be_config(read_head(path)):
            return {path: config_check(path, read_base(path, allowed, starts=False), name=path)}
    except ForeignConfigError:
        pass
    except CkptToolError as error:
        return {path: replace(unusable(path, error), name=path)}
    foreign[path] = None
    return {}


def _yaml_files(folder: str, unseen: dict[str, Check]) -> Iterator[str]:
    """Yield the YAML files below a folder, by name; a folder that cannot be listed becomes a check."""

    def cannot(error: OSError) -> None:
        place = str(error.filename)
        finding = judge.stopped(f"{place!r} cannot be listed: {error.strerror}", ExitCode.INCOMPLETE)
        reason = Reason(finding=finding, file=place)
        unseen[place] = Check(name=place, summary="not checked", reasons=(reason,), stopped=ExitCode.INCOMPLETE)

    for place, folders, names in os.walk(folder, onerror=cannot):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(_ENDINGS))


def unusable(path: str, error: CkptToolError, *, remedy: str | None = None) -> Check:
    """Return a check with the error that makes a config unusable.

    `remedy` is None if the remedy is to correct the config.
    """
    line = error.line if isinstance(error, ConfigError) else None
    reason = Reason(finding=judge.unusable(str(error), path, line, remedy), file=path)
    return Check(name="config", summary="cannot be used", reasons=(reason,), stopped=error.exit_code)


def may_be_config(content: bytes) -> bool:
    """Return whether a file contains keys of a known config, or zero bytes, as UTF-16 text does."""
    return b"\0" in content or any(
        trainer.configs.may_be_own(content) for trainer in trainers() if trainer.configs is not None
    )


def _lint(config: RunConfig) -> tuple[Finding, ...]:
    """Return the mistakes in a config, according to its own trainer's rules."""
    reader = trainer_named(config.trainer).configs
    return () if reader is None else reader.lint(config)
