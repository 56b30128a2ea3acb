"""One answer before a launch: resolve, verify, health, the config's lint, the launch, the disk. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.decide import preflight as judge
from ckpttool.core.decide.inline_allow import allowed_in
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.data_position import skip_of
from ckpttool.core.domain.finding import Code, Finding, Row
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import Check, DiskNeed, NextSaves, Preflight, PreflightQuestion, Reason
from ckpttool.core.domain.units import counted
from ckpttool.core.errors import CkptToolError, ExitCode, UsageError
from ckpttool.core.render.answers import preflight_summaries as summaries
from ckpttool.core.storage import is_local
from ckpttool.core.storage.disk import Disk, LocalDisk
from ckpttool.core.verbs.configs import BaseConfig, config_check, parse_config, read_or_check
from ckpttool.core.verbs.resolving import Answer, resolve
from ckpttool.core.verbs.scanning import Where, tree_question
from ckpttool.core.verbs.skipping import skip_setting
from ckpttool.core.verbs.starting import LAUNCHED, against_start, judged_launch, judged_start
from ckpttool.trainers.registry import trainer_named

if TYPE_CHECKING:
    from ckpttool.core.domain.launch import LaunchConfig
    from ckpttool.core.domain.node import Node
    from ckpttool.core.domain.plan import JudgedStart
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.verbs.scanning import Tree
    from ckpttool.trainers.abilities import LaunchTarget

_AFTER_CONFIG = ("checkpoint", "health", "launch", "start", "disk")


def preflight(
    question: PreflightQuestion | str | os.PathLike[str],
    disk: Disk | None = None,
    *,
    tree: Where = None,
    node: Node | None = None,
) -> Preflight:
    """Say whether a launch now would resume where it says, with every reason against it.

    What stops one check is a reason like any other, so that a report comes out of it in any case.

    Args:
        question: Which config and tree, and what is good enough; or the config's path alone.
        tree: Where the question is a path: which tree.
        disk: Tells room and rights; None: the file systems mounted here.
        node: Tells which disk this is, and of other machines; None: this one.
    """
    if not isinstance(question, PreflightQuestion):
        question = PreflightQuestion(config=os.fspath(question), tree=tree_question(tree))
    disk = disk or LocalDisk()
    if question.config is None:
        return _without_config(question, disk, node)
    config = read_or_check(question.config, question.allowed, devices=question.devices)
    first = config_check(question.config, config)
    if isinstance(config, Check):
        return _cut_short(question, [first], _AFTER_CONFIG)
    try:
        answer = resolve(replace(question.tree, config=config.run), question.choice, question.data, node=node)
        trainer = answer.tree.trainer
        if trainer is not None and (trainer.launch is None or not is_local(answer.tree.inventory.root)):
            return _told_by_hand(question, answer, disk, config=config.run, before=(first,))
        ready = judged(question, config, answer, disk).answer
        *before, of_disk = ready.checks
        start = _start_check(_teller(question, answer), answer, judged_start(answer))
        return replace(ready, checks=(*before, start, of_disk))
    except CkptToolError as error:
        return _cut_short(question, [first, _stopped("checkpoint", error)], _AFTER_CONFIG[1:])


def _without_config(question: PreflightQuestion, disk: Disk, node: Node | None) -> Preflight:
    """Judge a start where there is no config to look at."""
    try:
        answer = resolve(question.tree, question.choice, question.data, node=node)
        return _told_by_hand(question, answer, disk)
    except CkptToolError as error:
        return _cut_short(question, [_stopped("checkpoint", error)], _AFTER_CONFIG[1:])


def _told_by_hand(
    question: PreflightQuestion,
    answer: Answer,
    disk: Disk,
    *,
    config: RunConfig | None = None,
    before: tuple[Check, ...] = (),
) -> Preflight:
    """Judge a start for which `launch` writes no config: its user tells the trainer what to load."""
    decision, inventory, teller = answer.decision, answer.tree.inventory, _teller(question, answer)
    plan = decision if isinstance(decision, ResumePlan) else None
    checks_by_name = judge.by_check(decision, config, strict=question.strict, view=question.view)
    launch = _launch_by_hand(teller, answer, plan, checks_by_name["launch"])
    coming = NextSaves(folder=inventory.root, inside=(), count=1, stays=None)
    is_readable = answer.tree.is_in_folder
    need = _disk_needs(coming, answer.tree, plan, disk) if is_readable else None
    checks = (
        *before,
        teller.check(
            "checkpoint", summaries.checkpoint_summary(decision), checks_by_name["checkpoint"], _nothing(decision)
        ),
        _health_check(teller, inventory, plan, checks_by_name["health"]),
        launch,
        _start_check(teller, answer, judged_start(answer)),
        _disk_check(teller, need) if is_readable or plan is None else _NO_DISK,
    )
    return _answered(question, answer, checks, need)


_NO_DISK = Check(name="disk", summary="not judged: the tree is not on a disk of this machine", unsure=True)


def _launch_by_hand(teller: _Teller, answer: Answer, plan: ResumePlan | None, findings: Iterable[Finding]) -> Check:
    trainer = answer.tree.trainer
    if plan is None:
        return _skipped(teller.check("launch", "nothing was chosen", findings))
    if trainer is not None and trainer.launch is not None:
        why = "no --config"
        if answer.question.config is not None:
            why = "a training loads from a folder: copy the tree to one, and `launch --load-checkpoint` that"
        return replace(teller.check("launch", f"not judged: {why}", findings), unsure=True)
    title = "nobody" if trainer is None else trainer.title
    return teller.check("launch", summaries.told_summary(plan, trainer=title), findings)


def assert_told_by_its_user(tree: Tree) -> None:
    """Refuse a trainer that is started with a config.

    Raises:
        UsageError: `launch` edits its configs.
    """
    if tree.trainer is not None and tree.trainer.launch is not None:
        advice = "give --config BASE.yaml, and launch --output NEW.yaml"
        raise UsageError(f"{tree.trainer.title} is started with a config: {advice}")


def _nothing(decision: ResumePlan | NoResumePoint) -> ExitCode | None:
    is_nothing = isinstance(decision, NoResumePoint) and decision.is_sure
    return ExitCode.NOTHING_TO_RESUME if is_nothing else None


def _answered(question: PreflightQuestion, answer: Answer, checks: tuple[Check, ...], needs: _Needs) -> Preflight:
    return Preflight(
        config=question.config,
        root=answer.tree.inventory.root,
        checks=checks,
        decision=answer.decision,
        disk=needs[0] if isinstance(needs, tuple) else None,
        resolved_from=answer.tree.resolved_from,
        view=question.view,
    )


def _cut_short(question: PreflightQuestion, checks: list[Check], remaining: Sequence[str]) -> Preflight:
    skipped = [Check(name=name, summary="not looked at", skipped=True) for name in remaining]
    return Preflight(config=question.config, root=None, checks=(*checks, *skipped), view=question.view)


def _stopped(name: str, error: CkptToolError) -> Check:
    finding = judge.stopped(str(error), error.exit_code)
    return Check(name=name, summary="no answer", reasons=(Reason(finding=finding),), stopped=error.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teller:
    """Makes reasons of findings: what was accepted becomes a note, and paths become such as can be opened."""

    config: str
    root: str
    allowed: tuple[Row, ...]
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
        full_path = os.path.join(os.path.dirname(self.root), path)  # health_ckpts.json
        return full_path if not os.path.lexists(inside) and os.path.lexists(full_path) else inside


def _teller(question: PreflightQuestion, answer: Answer) -> _Teller:
    logs = [finding.path for finding in answer.decision.findings if finding.code is Code.LOG_UNREADABLE]
    named = frozenset(path for path in (question.tree.health_file, answer.tree.book.path, *logs) if path is not None)
    return _Teller(config=question.config or "", root=answer.tree.inventory.root, allowed=question.allowed, named=named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What stands against a launch, and what it would be."""

    answer: Preflight
    plan: ResumePlan | None
    """With the whole path of the tree: the trainer need not start in the folder that we were started in."""
    edited: LaunchConfig | CkptToolError | None
    """The launch config, or why there is none; None where nothing was chosen."""

    def launch_config(self) -> LaunchConfig | None:
        """Return the launch config; None where something stands against the launch.

        Raises:
            CkptToolError: None can be made, although the user accepts that the base config disagrees.
        """
        if not self.answer.go:
            return None
        if isinstance(self.edited, CkptToolError):
            raise self.edited
        return self.edited


def judged(question: PreflightQuestion, config: BaseConfig, answer: Answer, disk: Disk) -> Judged:
    """Say what stands against a launch of what was decided: for `preflight`, and for `launch` before it writes."""
    decision, target, teller = (
        answer.decision,
        assert_startable(answer.tree, question.load_checkpoint),
        _teller(question, answer),
    )
    plan, edited = None, None
    of_devices = judge.devices_unknown(decision, config.run) if question.devices is None else ()
    if isinstance(decision, ResumePlan):
        plan = replace(decision, load=decision.load.at(_on_disk(decision, answer.tree, question.load_checkpoint)))
        edited = _edited(target, config, plan)
        if question.devices is not None:
            of_devices = target.other_devices(config.run, question.devices)
    checks_by_name = judge.by_check(
        decision, config.run, strict=question.strict, of_devices=of_devices, view=question.view
    )
    need = _disk_needs(target.next_saves(config.run, answer.tree.inventory), answer.tree, plan, disk)
    checks = (
        config_check(config.run.path, config),
        teller.check(
            "checkpoint", summaries.checkpoint_summary(decision), checks_by_name["checkpoint"], _nothing(decision)
        ),
        _health_check(teller, answer.tree.inventory, plan, checks_by_name["health"]),
        _launch_check(teller, config, plan, edited, checks_by_name["launch"]),
        _disk_check(teller, need),
    )
    return Judged(answer=_answered(question, answer, checks, need), plan=plan, edited=edited)


def judged_with_start(question: PreflightQuestion, config: BaseConfig, answer: Answer, disk: Disk) -> Judged:
    """Judge a launch, and what a start with the config that it would write loads: something may overrule that."""
    ready, plan = judged(question, config, answer, disk), answer.decision
    if not isinstance(plan, ResumePlan) or ready.edited is None or isinstance(ready.edited, CkptToolError):
        return ready
    if plan.point.checkpoint.renames:
        return ready  # `needs-renames` stands against the launch, or somebody said that they come before the start
    text = ready.edited.text
    if question.load_checkpoint is not None or not answer.tree.machines.is_here:
        # It names the tree where it lies for the training; what is judged is the same, as it lies for us.
        text = assert_startable(answer.tree, question.load_checkpoint).config(config.run, plan).text
    written = parse_config(text.encode("utf-8"), path=config.run.path, devices=question.devices)
    answer, start = judged_launch(answer, written)
    *before, of_disk = ready.answer.checks
    checks = (*before, _start_check(_teller(question, answer), answer, start), of_disk)
    return replace(ready, answer=replace(ready.answer, checks=checks))


def assert_startable(tree: Tree, copied_to: str | None) -> LaunchTarget:
    """Return how the trainer of a tree is started.

    Args:
        tree: Which.
        copied_to: The folder to which a tree of an object store was copied.

    Raises:
        UsageError: Nobody knows how, or the tree is in no folder.
    """
    if copied_to is None and not is_local(tree.inventory.root):
        advice = "copy it to one, and give launch that as --load-checkpoint"
        raise UsageError(f"a training loads from a folder, which {tree.inventory.root} is not: {advice}")
    if copied_to is not None and is_local(tree.inventory.root):
        raise UsageError(f"--load-checkpoint is for trees in object stores; {tree.inventory.root} is loaded as it lies")
    if tree.trainer is None or tree.trainer.launch is None:
        title = "a lone file" if tree.trainer is None else tree.trainer.title
        advice = "without --config and --output `ckpttool launch` says what to tell it"
        raise UsageError(
            f"ckpttool does not know how a training is started from {title}: {tree.inventory.root}; {advice}"
        )
    return tree.trainer.launch


def _on_disk(plan: ResumePlan, tree: Tree, copied_to: str | None) -> str:
    """Return what the trainer loads, as a path on a disk.

    Raises:
        UsageError: The copy lacks files of the plan, or they have other sizes; or of several machines each has the tree
            somewhere else.
    """
    if copied_to is None:
        return tree.from_the_top(plan.load.path)
    lacking = [path for path in plan.copies if not _is_copied(tree, path, copied_to)]
    if lacking:
        message = (
            f"{copied_to} lacks {len(lacking)} of {counted(len(plan.copies), 'file')} of {plan.point.checkpoint.name}"
        )
        raise UsageError(f"{message}, {lacking[0]} first: copy them from {plan.root} (`copy` of resolve --format json)")
    return os.path.abspath(copied_to) + plan.load.path.removeprefix(plan.root)


def _is_copied(tree: Tree, path: str, folder: str) -> bool:
    try:
        return os.path.getsize(os.path.join(folder, path)) == tree.storage.stamp(path).size
    except OSError:
        return False


def _edited(target: LaunchTarget, config: BaseConfig, plan: ResumePlan) -> LaunchConfig | CkptToolError:
    try:
        return target.config(config.run, plan)
    except CkptToolError as error:
        return error


def _health_check(teller: _Teller, recorded: Inventory, plan: ResumePlan | None, findings: Iterable[Finding]) -> Check:
    if plan is None:
        return _skipped(teller.check("health", "nothing was chosen", findings))
    chosen = plan.point.checkpoint
    same = next((checkpoint for checkpoint in recorded.checkpoints if checkpoint.key == chosen.key), chosen)
    findings = tuple(findings)
    torn = any(finding.code is Code.HEALTH_UNREADABLE for finding in findings)
    check = teller.check("health", summaries.health_summary(chosen, same.health, torn=torn), findings)
    return replace(check, unsure=chosen.health is Health.UNKNOWN)


def _launch_check(
    teller: _Teller,
    config: BaseConfig,
    plan: ResumePlan | None,
    edited: LaunchConfig | CkptToolError | None,
    findings: Iterable[Finding],
) -> Check:
    if plan is None or edited is None:
        return _skipped(teller.check("launch", "nothing was chosen", findings))
    if isinstance(edited, CkptToolError):
        problem = judge.not_editable(str(edited), teller.config)
        return teller.check("launch", "the base config cannot be edited", (*findings, problem))
    trainer, skip = trainer_named(config.run.trainer), skip_of(plan.data)
    trainers_skip = None if skip is None else skip_setting(skip, trainer)
    summary = summaries.launch_summary(
        plan, config.run, len(edited.changes), trainer=trainer.title, trainers_skip=trainers_skip
    )
    return teller.check("launch", summary, findings)


def _start_check(teller: _Teller, answer: Answer, start: JudgedStart | None) -> Check:
    """Compare what a start loads with what was chosen."""
    plan = answer.decision
    if start is None or not isinstance(plan, ResumePlan):
        return Check(name="start", summary="nothing was chosen", skipped=True)
    findings, config = against_start(start, answer, plan), answer.question.config
    silenced = () if config is None else allowed_in(config.text, findings)
    remaining = [finding for finding in findings if finding not in silenced]
    if start.lead == LAUNCHED:  # its lines are of a file that is not there
        remaining = [replace(finding, line=None) for finding in remaining]
    check = teller.check("start", summaries.start_summary(start, plan), remaining)
    allowed = tuple(Reason(finding=finding, file=finding.path) for finding in silenced)
    return replace(check, allowed=allowed, unsure=not start.is_known)


def _skipped(check: Check) -> Check:
    """Skip what needs a plan, unless something is known against it all the same."""
    return check if check.reasons else replace(check, skipped=True)


_Needs: TypeAlias = "tuple[DiskNeed, ...] | Finding | None"
"""Of each disk, that with the least room first; or why it is not known; None where there is no save to go by."""


def _disk_needs(coming: NextSaves, tree: Tree, plan: ResumePlan | None, disk: Disk) -> _Needs:
    """Compare what the next saves take with what there is."""
    if plan is None:
        return None
    paths = tuple(shard.path for shard in plan.point.checkpoint.shards)
    return tree.machines.disk_needs(coming, tree.storage, paths, disk)


def _disk_check(teller: _Teller, needs: _Needs) -> Check:
    if needs is None:
        return Check(name="disk", summary="nothing was chosen", skipped=True)
    if isinstance(needs, Finding):
        return teller.check("disk", "room unknown", [needs])
    findings = [finding for need in needs for finding in judge.disk_findings(need)]
    return teller.check("disk", summaries.disk_summary(needs[0]), findings)
