"""One answer before a launch: resolve, verify, health, the config's lint, the launch, the disk. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpttool.api.resumes import Answer, resolve
from ckpttool.decide import preflight as judge
from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.finding import Code, Finding, seen_in_part
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.health import Health
from ckpttool.domain.plan import ResumePlan
from ckpttool.domain.preflight import Check, DiskNeed, Lint, Preflight, PreflightQuestion, Reason
from ckpttool.errors import CkptToolError, ConfigError, ExitCode
from ckpttool.formats.safe_yaml import parse_document, read_bytes
from ckpttool.formats.settings import settings_of
from ckpttool.storage.disk import Disk, LocalDisk
from ckpttool.trainers.mindformers.config import train_config_of
from ckpttool.trainers.mindformers.lint import lint
from ckpttool.trainers.mindformers.next_saves import next_saves
from ckpttool.trainers.registry import launch_target

if TYPE_CHECKING:
    from ckpttool.domain.node import Node
    from ckpttool.domain.settings import Settings
    from ckpttool.trainers.mindformers.train_config import TrainConfig

_AFTER_CONFIG = ("checkpoint", "health", "launch", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConfig:
    """A config that was read, with all that is to be said of it alone."""

    text: str
    settings: Settings
    train: TrainConfig
    findings: tuple[Finding, ...]
    """What is wrong with it, by rules and by what was read; what the user accepts is a note."""


def lint_configs(paths: Sequence[str], *, allowed: Iterable[Code] = ()) -> Lint:
    """Say what in configs MindFormers finds wrong late or never; no checkpoint is looked at.

    Returns:
        One check a file. A file that cannot be used at all is a finding too, with its exit code.
    """
    return Lint(checks=tuple(_config_check(path, _read(path, tuple(allowed)), name=path) for path in paths))


def preflight(question: PreflightQuestion, disk: Disk | None = None, *, node: Node | None = None) -> Preflight:
    """Say whether a launch now would resume where it says, with every reason against it.

    What stops one check is a reason like any other, so that a report comes out of it in any case.

    Args:
        question: Which config and tree, and what is good enough.
        disk: Tells room and rights; None: the file systems mounted here.
        node: Tells which disk this is, and of other machines; None: this one.
    """
    config = _read(question.config, question.allowed, devices=question.devices)
    first = _config_check(question.config, config)
    if isinstance(config, Check):
        return _cut_short(question, [first], _AFTER_CONFIG)
    try:
        answer = resolve(replace(question.tree, config=config.train), question.choice, question.data, node=node)
    except CkptToolError as error:
        return _cut_short(question, [first, _stopped("checkpoint", error)], _AFTER_CONFIG[1:])
    return judged(question, config, answer, disk or LocalDisk())


def read_base(path: str, allowed: tuple[Code, ...], *, devices: int | None = None) -> BaseConfig:
    """Read the config that a launch starts from, and judge it by every rule about configs.

    Args:
        path: As the user gave it.
        allowed: Findings that the user accepts.
        devices: Devices that will be started in all; None: not known.

    Raises:
        CkptToolError: It cannot be used at all.
    """
    content = read_bytes(path)
    document = parse_document(content, what=path)
    settings, train = settings_of(document, path=path), train_config_of(document, path=path, devices=devices)
    findings = lint(settings)
    return BaseConfig(
        text=content.decode("utf-8"), settings=settings, train=train, findings=judge.allow(findings, allowed)
    )


def _read(path: str, allowed: tuple[Code, ...], *, devices: int | None = None) -> BaseConfig | Check:
    try:
        return read_base(path, allowed, devices=devices)
    except CkptToolError as error:
        line = error.line if isinstance(error, ConfigError) else None
        reason = Reason(finding=judge.unusable(str(error), path, line), file=path)
        return Check(name="config", summary="cannot be used", reasons=(reason,), stopped=error.exit_code)


def _config_check(path: str, config: BaseConfig | Check, *, name: str = "config") -> Check:
    if isinstance(config, Check):
        return replace(config, name=name)
    summary = judge.config_summary(config.findings)
    reasons = tuple(Reason(finding=finding, file=path) for finding in config.findings)
    return Check(name=name, summary=summary, reasons=reasons)


def _cut_short(question: PreflightQuestion, checks: list[Check], left: Sequence[str]) -> Preflight:
    skipped = [Check(name=name, summary="not looked at", skipped=True) for name in left]
    return Preflight(config=question.config, root=None, checks=(*checks, *skipped))


def _stopped(name: str, error: CkptToolError) -> Check:
    finding = judge.stopped(str(error), error.exit_code)
    return Check(name=name, summary="no answer", reasons=(Reason(finding=finding),), stopped=error.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teller:
    """Makes reasons of findings: what was accepted becomes a note, and paths become such as can be opened."""

    config: str
    root: str
    allowed: tuple[Code, ...]
    named: frozenset[str]
    """Logs and a health file, as the user gave them."""

    def check(self, name: str, summary: str, findings: Iterable[Finding], stopped: ExitCode | None = None) -> Check:
        reasons = tuple(
            Reason(finding=finding, file=self._file(finding.path)) for finding in judge.allow(findings, self.allowed)
        )
        return Check(name=name, summary=summary, reasons=reasons, stopped=stopped)

    def _file(self, path: str | None) -> str | None:
        """Findings name configs, logs and folders as the user gave them, and everything else relative to the root."""
        if path is None or path in {self.config, *self.named} or os.path.isabs(path) or path.startswith(self.root):
            return path
        inside = os.path.join(self.root, path)
        beside = os.path.join(os.path.dirname(self.root), path)  # health_ckpts.json
        return beside if not os.path.lexists(inside) and os.path.lexists(beside) else inside


def _health(recorded: Inventory, chosen: Checkpoint) -> str:
    same = next((one for one in recorded.checkpoints if one.shards == chosen.shards), chosen)
    return judge.health_summary(chosen, same.health)


def judged(question: PreflightQuestion, config: BaseConfig, answer: Answer, disk: Disk) -> Preflight:
    """Say what stands against a launch of what was decided: for `preflight`, and for `launch` before it writes."""
    decision, root = answer.decision, answer.tree.inventory.root
    logs = [one.path for one in decision.findings if one.code is Code.LOG_UNREADABLE]
    named = frozenset(path for path in (question.tree.health_file, *logs) if path is not None)
    teller = _Teller(config=question.config, root=root, allowed=question.allowed, named=named)
    found = judge.by_check(decision, config.train, strict=question.strict, devices=question.devices)
    plan = decision if isinstance(decision, ResumePlan) else None
    nothing = ExitCode.NOTHING_TO_RESUME if plan is None and not seen_in_part(decision.findings) else None
    health = _health(answer.tree.inventory, plan.point.checkpoint) if plan else "nothing was chosen"
    need = _disk_need(config, answer, plan, disk)
    return Preflight(
        config=question.config,
        root=root,
        checks=(
            _config_check(question.config, config),
            teller.check("checkpoint", judge.checkpoint_summary(decision), found["checkpoint"], nothing),
            replace(
                _skipped_without(plan, teller.check("health", health, found["health"])),
                unsure=plan is not None and plan.point.checkpoint.health is Health.UNKNOWN,
            ),
            _skipped_without(plan, _launch(teller, config, plan, found["launch"])),
            _disk_check(teller, need),
        ),
        decision=decision,
        disk=need if isinstance(need, DiskNeed) else None,
        took=answer.tree.took,
    )


def _skipped_without(plan: ResumePlan | None, check: Check) -> Check:
    """Skip what needs a plan, unless something is known against it all the same."""
    return check if plan is not None or check.reasons else replace(check, skipped=True)


def _launch(teller: _Teller, config: BaseConfig, plan: ResumePlan | None, findings: Iterable[Finding]) -> Check:
    """Make the launch config as `launch` would, and throw it away."""
    if plan is None:
        return teller.check("launch", "nothing was chosen", findings)
    there = plan.load.at(os.path.abspath(plan.load.path))
    try:
        edited = launch_target().config(config.text, replace(plan, load=there))
    except CkptToolError as error:
        problem = judge.not_editable(str(error), teller.config)
        return teller.check("launch", "the base config cannot be edited", (*findings, problem))
    return teller.check("launch", judge.launch_summary(plan, config.train, len(edited.changes)), findings)


def _disk_need(config: BaseConfig, answer: Answer, plan: ResumePlan | None, disk: Disk) -> DiskNeed | Finding | None:
    """Compare what the next saves take with what there is; None where there is no whole save to go by."""
    if plan is None:
        return None
    inventory, shards = answer.tree.inventory, plan.point.checkpoint.shards
    coming = next_saves(config.settings, inventory.root)
    folder = disk.nearest(coming.folder)
    folders = [folder]
    if folder == inventory.root:
        folders += [os.path.join(folder, f"rank_{rank}") for rank in inventory.folder_ranks]
    try:
        size = sum(answer.tree.storage.stamp(shard.path).size for shard in shards)
        room = disk.room(folder)
    except OSError as error:
        return judge.disk_unknown(folder, error.strerror or str(error))
    return DiskNeed(
        folder=folder,
        saves=coming.count,
        save_bytes=size,
        save_files=len(shards),
        free_bytes=room.free_bytes,
        free_files=room.free_files,
        unwritable=tuple(each for each in folders if not disk.is_writable(each)),
    )


def _disk_check(teller: _Teller, need: DiskNeed | Finding | None) -> Check:
    if need is None:
        return Check(name="disk", summary="nothing was chosen", skipped=True)
    if isinstance(need, Finding):
        return teller.check("disk", "room unknown", [need])
    return teller.check("disk", judge.disk_summary(need), judge.disk_findings(need))
