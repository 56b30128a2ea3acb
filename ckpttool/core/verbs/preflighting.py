"""The go or no-go answer before a launch, from resolve, verify, health, lint, the launch and the disk.

Writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from ckpttool.core.decide import preflight as judge
from ckpttool.core.decide.inline_allow import allowed_in
from ckpttool.core.domain.data_position import skip_of
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import Check, DiskNeed, NextSaves, Preflight, PreflightQuestion, Reason
from ckpttool.core.domain.units import counted, in_gib
from ckpttool.core.errors import CkptToolError, ExitCode, UsageError
from ckpttool.core.extensions import features, imported
from ckpttool.core.render.answers import preflight_summaries as summaries
from ckpttool.core.storage import is_local
from ckpttool.core.storage.disk import Disk, LocalDisk
from ckpttool.core.verbs.configs import BaseConfig, config_check, parse_config, read_or_check
from ckpttool.core.verbs.first_start import fresh_start, resolve_or_start
from ckpttool.core.verbs.resolving import Answer
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


def preflight(question: PreflightQuestion, *, disk: Disk | None = None, node: Node | None = None) -> Preflight:
    """Check whether a launch now would resume from the chosen checkpoint, and list every reason against it.

    An error in a check is reported as a reason, so there is always an answer. Changes nothing.

    Args:
        question: Config, tree, and accepted findings.
        disk: The source of free space and permissions; None for the file systems of this machine.
        node: The source of facts about this disk and other machines; None for this machine.
    """
    config: BaseConfig | None = None
    before: tuple[Check, ...] = ()
    if question.config is not None:
        read = read_or_check(question.config, question.allowed, devices=question.devices)
        before = (config_check(question.config, read),)
        if isinstance(read, Check):
            return _cut_short(question, before, _AFTER_CONFIG)
        config = read
    tree_question = question.tree if config is None else replace(question.tree, config=config.run)
    try:
        answer = resolve_or_start(tree_question, question.choice, question.data, question.start, node=node)
        if isinstance(answer.decision, FreshStart):
            return _fresh(question, config, answer, disk or LocalDisk())[0]
        if config is None or _is_started_by_user(answer.tree):
            context = _by_hand(question, config, answer, disk or LocalDisk())
        else:
            context = _by_config(question, config, answer, disk or LocalDisk())
        return _answered(context._replace(start=judged_start(answer)), CHECKS)
    except CkptToolError as error:
        return _cut_short(question, (*before, _stopped("checkpoint", error)), _AFTER_CONFIG[1:])


def fresh_launch(
    question: PreflightQuestion, config: BaseConfig, answer: Answer, disk: Disk
) -> tuple[Preflight, LaunchConfig | None]:
    """Judge a launch that starts from scratch with the config to be written; return the config, if one can be made."""
    return _fresh(question, config, answer, disk, writes=True)


def _fresh(
    question: PreflightQuestion, config: BaseConfig | None, answer: Answer, disk: Disk, *, writes: bool = False
) -> tuple[Preflight, LaunchConfig | None]:
    """Judge a start from scratch, and return its config, if one is made."""
    decision = cast("FreshStart", answer.decision)
    checks = [] if config is None else [config_check(config.run.path, config)]
    checks.append(Check(name="checkpoint", summary=summaries.fresh_summary(decision)))
    checks.append(Check(name="health", summary="no checkpoint, so there is nothing to judge"))
    edited: LaunchConfig | None = None
    target = None if config is None else trainer_named(config.run.trainer).launch
    launch_findings: list[Finding] = []
    launch_summary = "start the training without settings that load a checkpoint"
    if config is not None and target is not None:
        try:
            edited = target.fresh_config(config.run, decision.root)
        except CkptToolError as error:
            launch_findings.append(replace(judge.not_editable(str(error), config.run.path), remedy=None))
            launch_summary = "the base config cannot be edited"
        else:
            launch_summary = f"{counted(len(edited.changes), 'setting')} to change"
        if question.devices is None and not writes:  # `launch` refuses an unknown number itself
            launch_findings += judge.devices_unknown(decision, config.run)
        if question.devices is not None:
            launch_findings += target.other_devices(config.run, question.devices)
    checks.append(_fresh_check(question, "launch", launch_summary, launch_findings))
    if not writes:
        judged_start = fresh_start(answer, None if config is None else config.run, question.tree.layout)
        findings = judge.against_fresh(decision, edited, judged_start, config=question.config)
        summary = summaries.fresh_start_summary(edited, judged_start)
        start = _fresh_check(question, "start", summary, findings)
        checks.append(replace(start, unsure=edited is None and (judged_start is None or not judged_start.is_known)))
    checks.append(_fresh_disk(question, decision, disk))
    return Preflight(
        config=question.config, root=decision.root, checks=tuple(checks), decision=decision, view=question.view
    ), edited


def _fresh_check(question: PreflightQuestion, name: str, summary: str, findings: Iterable[Finding]) -> Check:
    reasons = tuple(Reason(finding=finding, file=finding.path) for finding in judge.allow(findings, question.allowed))
    return Check(name=name, summary=summary, reasons=reasons)


def _fresh_disk(question: PreflightQuestion, decision: FreshStart, disk: Disk) -> Check:
    """Check that the folder of the saves can be created and written; the size of a save is not known yet."""
    if not is_local(decision.root):
        return Check(name="disk", summary="unknown: the tree is not on a disk of this machine", unsure=True)
    folder = disk.nearest(decision.root)
    try:
        room = disk.room(folder)
    except OSError as error:
        finding = judge.disk_unknown(folder, error.strerror or str(error))
        return _fresh_check(question, "disk", "free space unknown", [finding])
    need = DiskNeed(
        folder=folder,
        saves=0,
        save_bytes=0,
        save_files=0,
        free_bytes=room.free_bytes,
        free_files=room.free_files,
        unwritable=() if disk.is_writable(folder) else (folder,),
    )
    summary = f"{in_gib(room.free_bytes)} free; the size of a save is unknown before the first one"
    return replace(_fresh_check(question, "disk", summary, judge.disk_findings(need)), unsure=True)


def _is_started_by_user(tree: Tree) -> bool:
    """Return whether `launch` writes no config for a tree, because the user passes the checkpoint to the trainer."""
    return tree.trainer is not None and (tree.trainer.launch is None or not is_local(tree.inventory.root))


def assert_started_by_user(tree: Tree) -> None:
    """Refuse a trainer that is started with a config.

    Raises:
        UsageError: `launch` edits the trainer's configs.
    """
    if tree.trainer is not None and tree.trainer.launch is not None:
        advice = "give --config BASE.yaml, and launch --output NEW.yaml"
        raise UsageError(f"{tree.trainer.title} needs a config to start: {advice}")


def _cut_short(question: PreflightQuestion, checks: tuple[Check, ...], remaining: Sequence[str]) -> Preflight:
    skipped = [Check(name=name, summary="not checked", skipped=True) for name in remaining]
    return Preflight(config=question.config, root=None, checks=(*checks, *skipped), view=question.view)


def _stopped(name: str, error: CkptToolError) -> Check:
    finding = judge.stopped(str(error), error.exit_code)
    return Check(name=name, summary="not checked", reasons=(Reason(finding=finding),), stopped=error.exit_code)


_Needs: TypeAlias = "tuple[DiskNeed, ...] | Finding | None"
"""The need on each disk, least free space first, or why it is unknown; None if there is no save for an estimate."""


class Context(NamedTuple):
    """The facts about a launch that each check uses."""

    question: PreflightQuestion
    answer: Answer
    config: BaseConfig | None
    """The base config; None if it was not given."""
    plan: ResumePlan | None
    """The plan, with the path that the trainer loads; None if no checkpoint was chosen."""
    edited: LaunchConfig | CkptToolError | None
    """The launch config, or why it was not made; None if no checkpoint was chosen, or the user sets the checkpoint to
    load."""
    findings: Mapping[str, tuple[Finding, ...]]
    """The findings of the decision, by the name of their check."""
    needs: _Needs
    start: JudgedStart | None = None
    """The save that a start would load; None if no checkpoint was chosen."""

    def check(self, name: str, summary: str, findings: Iterable[Finding], stopped: ExitCode | None = None) -> Check:
        """Return a check with these findings; accepted findings become notes, and paths become openable."""
        paths = self._given()
        allowed = judge.allow(findings, self.question.allowed)
        reasons = tuple(Reason(finding=finding, file=self._file(finding.path, paths)) for finding in allowed)
        return Check(name=name, summary=summary, reasons=reasons, stopped=stopped)

    def _file(self, path: str | None, paths: Collection[str | None]) -> str | None:
        """Return a finding's path in a form that can be opened: unchanged, or joined to the root."""
        root = self.answer.tree.inventory.root
        if path is None or path in paths or os.path.isabs(path) or path.startswith(root):
            return path
        inside = os.path.join(root, path)
        full_path = os.path.join(os.path.dirname(root), path)  # health_ckpts.json
        return full_path if not os.path.lexists(inside) and os.path.lexists(full_path) else inside

    def _given(self) -> set[str | None]:
        """Return the config, logs and health file as the user gave them."""
        findings = self.answer.decision.findings
        logs = {finding.path for finding in findings if finding.code is Code.LOG_UNREADABLE}
        return {self.question.config or "", self.question.tree.health_file, self.answer.tree.book.path, *logs}


def _config(context: Context) -> Iterator[Check]:
    """Check only the config."""
    if context.config is not None:
        yield config_check(context.config.run.path, context.config)


def _checkpoint(context: Context) -> Iterator[Check]:
    """Report the chosen checkpoint and why no newer checkpoint was chosen, or why no checkpoint was."""
    decision = context.answer.decision
    is_nothing = isinstance(decision, NoResumePoint) and decision.is_sure
    stopped = ExitCode.NOTHING_TO_RESUME if is_nothing else None
    yield context.check("checkpoint", summaries.checkpoint_summary(decision), context.findings["checkpoint"], stopped)


def _health(context: Context) -> Iterator[Check]:
    """Check whether the model was healthy at the time of the save."""
    findings = context.findings["health"]
    if context.plan is None:
        yield _skipped(context.check("health", "nothing was chosen", findings))
        return
    chosen = context.plan.point.checkpoint
    recorded = context.answer.tree.inventory.checkpoints
    same = next((checkpoint for checkpoint in recorded if checkpoint.key == chosen.key), chosen)
    torn = any(finding.code is Code.HEALTH_UNREADABLE for finding in findings)
    check = context.check("health", summaries.health_summary(chosen, same.health, torn=torn), findings)
    yield replace(check, unsure=chosen.health is Health.UNKNOWN)


class LaunchNotes(Protocol):
    """Notes of features about a launch."""

    def __call__(self, tree: Tree, plan: ResumePlan, config: RunConfig | None) -> Iterable[Finding]:
        """Return notes about a launch.

        Args:
            tree: The tree.
            plan: The plan.
            config: The base config. None if it was not given.
        """
        ...


def launch_notes(tree: Tree, plan: ResumePlan, config: RunConfig | None) -> tuple[Finding, ...]:
    """Return the features' notes about a launch."""
    references = [feature.before_launch for feature in features() if feature.before_launch is not None]
    rules = [cast("LaunchNotes", imported(reference)) for reference in references]
    return tuple(finding for rule in rules for finding in rule(tree, plan, config))


def _launch(context: Context) -> Iterator[Check]:
    """Check how the trainer loads the checkpoint, and whether a launch config can be made."""
    findings, plan, trainer = context.findings["launch"], context.plan, context.answer.tree.trainer
    if plan is not None:
        config = None if context.config is None else context.config.run
        findings = (*findings, *launch_notes(context.answer.tree, plan, config))
    if plan is None:
        yield _skipped(context.check("launch", "nothing was chosen", findings))
    elif context.edited is None and trainer is not None and trainer.launch is not None:
        why = "no --config"
        if context.config is not None:
            why = (
                "a training run loads from a local folder: copy the tree to one, and pass that folder to `launch "
                "--load-checkpoint`"
            )
        yield replace(context.check("launch", f"unknown: {why}", findings), unsure=True)
    elif context.edited is None or context.config is None:
        title = "nobody" if trainer is None else trainer.title
        yield context.check("launch", summaries.user_settings_summary(plan, trainer=title), findings)
    elif isinstance(context.edited, CkptToolError):
        problem = judge.not_editable(str(context.edited), context.question.config or "")
        yield context.check("launch", "the base config cannot be edited", (*findings, problem))
    else:
        yield context.check("launch", _launch_summary(plan, context.config.run, context.edited), findings)


def _start(context: Context) -> Iterator[Check]:
    """Check whether a start would load a checkpoint other than the chosen one."""
    start, plan = context.start, context.answer.decision
    if start is None or not isinstance(plan, ResumePlan):
        yield Check(name="start", summary="nothing was chosen", skipped=True)
        return
    findings, config = against_start(start, context.answer, plan), context.answer.question.config
    silenced = () if config is None else allowed_in(config.text, findings)
    remaining = [finding for finding in findings if finding not in silenced]
    if start.lead == LAUNCHED:  # its lines refer to a file that does not exist
        remaining = [replace(finding, line=None) for finding in remaining]
    check = context.check("start", summaries.start_summary(start, plan), remaining)
    allowed = tuple(Reason(finding=finding, file=finding.path) for finding in silenced)
    yield replace(check, allowed=allowed, unsure=not start.is_known)


def _disk(context: Context) -> Iterator[Check]:
    """Check the disk space for the next saves."""
    needs = context.needs
    if context.plan is None:
        yield Check(name="disk", summary="nothing was chosen", skipped=True)
    elif needs is None:
        yield Check(name="disk", summary="unknown: the tree is not on a disk of this machine", unsure=True)
    elif isinstance(needs, Finding):
        yield context.check("disk", "free space unknown", [needs])
    else:
        findings = [finding for need in needs for finding in judge.disk_findings(need)]
        yield context.check("disk", summaries.disk_summary(needs[0]), findings)


Rule: TypeAlias = Callable[[Context], Iterator[Check]]

CHECKS: tuple[Rule, ...] = (_config, _checkpoint, _health, _launch, _start, _disk)
WITHOUT_START: tuple[Rule, ...] = (_config, _checkpoint, _health, _launch, _disk)
"""The rules for all checks except the start. Each rule makes its check once and does not remove the others."""


def _answered(context: Context, rules: tuple[Rule, ...]) -> Preflight:
    return Preflight(
        config=context.question.config,
        root=context.answer.tree.inventory.root,
        checks=tuple(check for rule in rules for check in rule(context)),
        decision=context.answer.decision,
        disk=context.needs[0] if isinstance(context.needs, tuple) else None,
        resolved_from=context.answer.tree.resolved_from,
        view=context.question.view,
    )


def _by_hand(question: PreflightQuestion, config: BaseConfig | None, answer: Answer, disk: Disk) -> Context:
    """Collect the facts about a start without a config of `launch`, if the user sets the checkpoint to load."""
    decision = answer.decision
    plan = decision if isinstance(decision, ResumePlan) else None
    run = None if config is None else config.run
    coming = NextSaves(folder=answer.tree.inventory.root, inside=(), count=1, stays=None)
    return Context(
        question=question,
        answer=answer,
        config=config,
        plan=plan,
        edited=None,
        findings=judge.by_check(decision, run, strict=question.strict, view=question.view),
        needs=_disk_needs(coming, answer.tree, plan, disk) if answer.tree.is_in_folder else None,
    )


def _by_config(question: PreflightQuestion, config: BaseConfig, answer: Answer, disk: Disk) -> Context:
    """Collect the facts about a start with the config that `launch` would write."""
    decision, target = answer.decision, assert_startable(answer.tree, question.load_checkpoint)
    plan, edited = None, None
    of_devices = judge.devices_unknown(decision, config.run) if question.devices is None else ()
    if isinstance(decision, ResumePlan):
        plan = replace(decision, load=decision.load.at(_on_disk(decision, answer.tree, question.load_checkpoint)))
        edited = _edited(target, config, plan)
        if question.devices is not None:
            of_devices = target.other_devices(config.run, question.devices)
    return Context(
        question=question,
        answer=answer,
        config=config,
        plan=plan,
        edited=edited,
        findings=judge.by_check(
            decision, config.run, strict=question.strict, of_devices=of_devices, view=question.view
        ),
        needs=_disk_needs(target.next_saves(config.run, answer.tree.inventory), answer.tree, plan, disk),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The findings against a launch, and its settings."""

    answer: Preflight
    plan: ResumePlan | None
    """The plan, with the absolute path of the tree because the trainer may start in a different folder."""
    edited: LaunchConfig | CkptToolError | None
    """The launch config, or why it was not made; None if no checkpoint was chosen."""

    def launch_config(self) -> LaunchConfig | None:
        """Return the launch config, or None if a finding prevents the launch.

        Raises:
            CkptToolError: No config can be made, although the user accepts that the base config disagrees.
        """
        if not self.answer.go:
            return None
        if isinstance(self.edited, CkptToolError):
            raise self.edited
        return self.edited


def judged(question: PreflightQuestion, config: BaseConfig, answer: Answer, disk: Disk) -> Judged:
    """Judge a launch before it is written, and the checkpoint that a start with its config would load.

    Other settings may override that config. Without a config, there is no such start.
    """
    context = _by_config(question, config, answer, disk)
    edited = context.edited
    if context.plan is None or edited is None or isinstance(edited, CkptToolError):
        return Judged(answer=_answered(context, WITHOUT_START), plan=context.plan, edited=edited)
    if context.plan.point.checkpoint.renames:
        # `needs-renames` prevents the launch, or the user accepted that the renames come first.
        return Judged(answer=_answered(context, WITHOUT_START), plan=context.plan, edited=edited)
    text = edited.text
    if isinstance(answer.decision, ResumePlan) and (
        question.load_checkpoint is not None or not answer.tree.machines.is_here
    ):
        # It names the tree by the path of the training run; the judged tree is the same, at our path.
        text = assert_startable(answer.tree, question.load_checkpoint).config(config.run, answer.decision).text
    written = parse_config(text.encode("utf-8"), path=config.run.path, devices=question.devices)
    launched, start = judged_launch(answer, written)
    with_start = context._replace(answer=launched, start=start)
    return Judged(answer=_answered(with_start, CHECKS), plan=context.plan, edited=edited)


def assert_startable(tree: Tree, copied_to: str | None) -> LaunchTarget:
    """Return how the trainer of a tree is started.

    Args:
        tree: The tree.
        copied_to: The folder to which a tree of an object store was copied.

    Raises:
        UsageError: It is unknown how the trainer is started, or the tree is not in a folder.
    """
    if copied_to is None and not is_local(tree.inventory.root):
        advice = "copy it to one, and pass that to launch with --load-checkpoint"
        raise UsageError(f"a training run loads from a local folder, but {tree.inventory.root} is not one: {advice}")
    if copied_to is not None and is_local(tree.inventory.root):
        raise UsageError(
            f"--load-checkpoint is for trees in object stores; {tree.inventory.root} is loaded from its own folder"
        )
    if tree.trainer is None or tree.trainer.launch is None:
        title = "a single file" if tree.trainer is None else tree.trainer.title
        advice = "`ckpttool launch` without --config and --output shows the settings to use"
        raise UsageError(f"ckpttool cannot write a launch config for {title} ({tree.inventory.root}); {advice}")
    return tree.trainer.launch


def _on_disk(plan: ResumePlan, tree: Tree, copied_to: str | None) -> str:
    """Return the checkpoint to load, as a path on a disk.

    Raises:
        UsageError: Files of the plan are missing from the copy or have a different size, or several machines have the
        tree at different paths.
    """
    if copied_to is None:
        return tree.from_the_top(plan.load.path)
    lacking = [path for path in plan.copies if not _is_copied(tree, path, copied_to)]
    if lacking:
        message = (
            f"{copied_to} lacks {len(lacking)} of {counted(len(plan.copies), 'file')} of {plan.point.checkpoint.name}"
        )
        raise UsageError(
            f"{message}, first {lacking[0]}: copy them from {plan.root} (resolve --format json lists them in `copy`)"
        )
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


def _launch_summary(plan: ResumePlan, config: RunConfig, edited: LaunchConfig) -> str:
    trainer, skip = trainer_named(config.trainer), skip_of(plan.data)
    trainers_skip = None if skip is None else skip_setting(skip, trainer)
    return summaries.launch_summary(
        plan, config, len(edited.changes), trainer=trainer.title, trainers_skip=trainers_skip
    )


def _skipped(check: Check) -> Check:
    """Mark a check that needs a plan as skipped, unless it has findings."""
    return check if check.reasons else replace(check, skipped=True)


def _disk_needs(coming: NextSaves, tree: Tree, plan: ResumePlan | None, disk: Disk) -> _Needs:
    """Compare the size of the next saves with the free space."""
    if plan is None:
        return None
    paths = tuple(shard.path for shard in plan.point.checkpoint.shards)
    return tree.machines.disk_needs(coming, tree.storage, paths, disk)
