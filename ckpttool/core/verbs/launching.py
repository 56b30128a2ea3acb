"""Turn a plan into a launch config on disk and the command that starts it."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Protocol

from ckpttool.core.decide.preflight import allow
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.launch import Fragment, Launch, LaunchJob
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import Preflight, PreflightQuestion, Refused
from ckpttool.core.domain.question import LaunchOrder, ResumeQuestion, StartQuestion, TreeQuestion
from ckpttool.core.errors import UnknownLayoutError, UsageError
from ckpttool.core.extensions import first_imported
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.disk import Disk, LocalDisk
from ckpttool.core.verbs.configs import BaseConfig, read_base
from ckpttool.core.verbs.first_start import fresh_remark, resolve_or_start
from ckpttool.core.verbs.preflighting import (
    assert_startable,
    assert_started_by_user,
    fresh_launch,
    judged,
    launch_notes,
)
from ckpttool.core.verbs.scanning import Tree, Where, tree_question
from ckpttool.core.write.files import assert_free
from ckpttool.core.write.files import replace as write
from ckpttool.trainers.registry import trainer_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding, Row
    from ckpttool.core.domain.node import Node
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.verbs.resolving import Answer


class CountsStarts(Protocol):
    """Counts launches, to find a save from which starts fail again and again."""

    def mark_failed(self, question: TreeQuestion) -> None:
        """Mark the save from which the last launches made no newer save, if there were enough of them."""
        ...

    def record(self, tree: Tree, checkpoint: Checkpoint) -> None:
        """Record a launch from a save."""
        ...


def start_counter(count: int | None) -> CountsStarts | None:
    """Return the counter of launches; None if none is requested.

    Args:
        count: The number of launches from one save without a newer save after which the save is marked as bad.

    Raises:
        UsageError: No feature counts launches.
    """
    if count is None:
        return None
    make: Callable[[int], CountsStarts] | None = first_imported(lambda feature: feature.starts)
    if make is None:
        raise UsageError("this ckpttool has no feature that counts starts")
    return make(count)


def launch(  # noqa: PLR0913  # the last two replace what the machine reports
    question: Where = None,
    choice: ResumeQuestion = ResumeQuestion(),
    data: DataQuestion = DataQuestion(),
    start: StartQuestion = StartQuestion(),
    *,
    order: LaunchOrder,
    disk: Disk | None = None,
    node: Node | None = None,
) -> Launch | Refused:
    """Write a config that resumes from the checkpoint that `resolve` chose, and return the start commands.

    Only the settings for the resume change; the comments, order and quoting of the base config are preserved. The
    new file is written last and atomically, after all checks have passed.

    Args:
        question: The tree. The config is always `order.base`, not the question's config.
        choice: The checkpoints that may be chosen.
        data: The changes to the data.
        start: Whether to accept a run that has never saved.
        order: The config to write, the machines, and the accepted findings.
        disk: As in `preflight`.
        node: As in `preflight`.

    Returns:
        The launch; if it is stopped, the preflight with every reason, and nothing is written.

    Raises:
        CkptToolError: The base config cannot be used, or the output exists and may not be replaced.
    """
    question = tree_question(question)
    counter = None if order.dry_run else start_counter(order.after_failed_starts)
    _mark_failed(counter, question, start)
    devices = None if order.devices_per_node is None else order.nodes * order.devices_per_node
    base = read_base(order.base, order.allowed, devices=devices)
    answer = resolve_or_start(replace(question, config=base.run), choice, data, start, node=node)
    preflight_question = _preflight_of(order, question, choice, data)
    disk = disk or LocalDisk()
    if isinstance(answer.decision, FreshStart):
        answer = replace(answer, decision=replace(answer.decision, is_uncounted=counter is not None))
        return _fresh(preflight_question, base, answer, disk, order)
    target = assert_startable(answer.tree, order.load_checkpoint)
    decision = answer.decision
    if isinstance(decision, NoResumePoint):
        return _refused(judged(preflight_question, base, answer, disk).answer)
    job = _job(base.run, order, decision.point.checkpoint.topology.world_size)
    commands, devices = None, None
    if job is not None:
        commands, devices = target.commands(base.run, job), job.nodes * job.devices_per_node
    ready = judged(replace(preflight_question, devices=devices), base, answer, disk)
    edited = ready.launch_config()
    if ready.plan is None or edited is None or commands is None:
        return _refused(ready.answer)
    notes = launch_notes(answer.tree, decision, base.run)
    plan = replace(ready.plan, findings=(*_reported(decision, ready.answer, order.allowed), *notes))
    launched = Launch(
        plan=plan,
        output=order.output,
        changes=edited.changes,
        commands=commands,
        folder=target.folder,
        view=order.view,
    )
    launched = _written(launched, edited.text, order)
    if counter is not None:
        counter.record(answer.tree, decision.point.checkpoint)
    return launched


def _fresh(
    question: PreflightQuestion, base: BaseConfig, answer: Answer, disk: Disk, order: LaunchOrder
) -> Launch | Refused:
    """Write a config that starts from scratch."""
    target = trainer_named(base.run.trainer).launch
    if target is None:
        title = trainer_named(base.run.trainer).title
        raise UsageError(
            f"ckpttool cannot write a launch config for {title}; `ckpttool launch --or-start` without --config and "
            "--output shows how to start"
        )
    ready, edited = fresh_launch(question, base, answer, disk)
    job = _job(base.run, order, None)
    if job is None:
        raise UsageError(f"{order.base} does not record how many devices to start: give --devices-per-node")
    if not ready.go or edited is None or not isinstance(answer.decision, FreshStart):
        return _refused(ready)
    return _written(
        Launch(
            plan=answer.decision,
            output=order.output,
            changes=edited.changes,
            commands=target.commands(base.run, job),
            folder=target.folder,
            view=order.view,
        ),
        edited.text,
        order,
    )


def _written(launched: Launch, text: str, order: LaunchOrder) -> Launch:
    """Write the launch config, unless it is a dry run or the file already has the content."""
    content = text.encode("utf-8")
    written = not order.dry_run and not (order.force and _is_already(order.output, content))
    if order.dry_run and not order.force:
        assert_free(order.output)
    if written:
        write(order.output, content, overwrite=order.force, backup=True)
    return replace(launched, written=written, dry_run=order.dry_run)


def _mark_failed(counter: CountsStarts | None, question: TreeQuestion, start: StartQuestion) -> None:
    """Mark a save from which starts fail again and again; before the first save, no save can be marked."""
    try:
        if counter is not None:
            counter.mark_failed(question)
    except UnknownLayoutError:
        if not start.or_start:
            raise


def fragment(  # noqa: PLR0913  # as of `launch`
    question: Where = None,
    choice: ResumeQuestion = ResumeQuestion(),
    data: DataQuestion = DataQuestion(),
    start: StartQuestion = StartQuestion(),
    *,
    strict: bool = False,
    node: Node | None = None,
    after_failed_starts: int | None = None,
) -> Fragment:
    """Return the settings that load the checkpoint chosen by `resolve`, for a trainer whose configs are not edited.

    Args:
        question: The tree.
        choice: The checkpoints that may be chosen.
        data: The changes to the data.
        start: Whether to accept a run that has never saved.
        strict: Whether to use a separate exit code if a newer checkpoint was rejected.
        node: As in `resolve`.
        after_failed_starts: As in `LaunchOrder`.

    Raises:
        CkptToolError: The question cannot be answered, or this trainer is started with a config that `launch` writes.
    """
    question = tree_question(question)
    counter = start_counter(after_failed_starts)
    _mark_failed(counter, question, start)
    answer = resolve_or_start(question, choice, data, start, node=node)
    if isinstance(answer.decision, FreshStart):
        fresh = replace(answer.decision, is_uncounted=counter is not None)
        return Fragment(decision=fresh, remark=fresh_remark(answer, question.layout))
    assert_started_by_user(answer.tree)
    decision = answer.decision
    if isinstance(decision, ResumePlan):
        findings = (*decision.findings, *launch_notes(answer.tree, decision, answer.question.config))
        load = decision.load
        if answer.tree.is_in_folder:
            load = load.at(answer.tree.from_the_top(load.path))
        decision = replace(decision, findings=findings, load=load)
        if counter is not None:
            counter.record(answer.tree, decision.point.checkpoint)
    return Fragment(decision=decision, strict=strict)


def _refused(preflight: Preflight) -> Refused:
    return Refused(**{field.name: getattr(preflight, field.name) for field in fields(preflight)})


def _preflight_of(
    order: LaunchOrder, question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion
) -> PreflightQuestion:
    return PreflightQuestion(
        config=order.base,
        tree=question,
        choice=choice,
        data=data,
        strict=order.strict,
        allowed=order.allowed,
        view=order.view,
        load_checkpoint=order.load_checkpoint,
    )


def _reported(plan: ResumePlan, ready: Preflight, allowed: tuple[Row, ...]) -> tuple[Finding, ...]:
    """Return the findings about the plan, and the accepted findings about the config and the machine."""
    findings = allow(plan.findings, allowed)
    reasons = (reason.finding for check in ready.checks for reason in check.reasons)
    return (*(reason for reason in reasons if reason.code in allowed and reason not in findings), *findings)


def _is_already(path: str, content: bytes) -> bool:
    """Return whether a file already has this content. Writing it again would replace the older content in `.bak`."""
    try:
        folder, name = os.path.split(path)
        with open_storage(folder or ".").open(name) as source:
            size = source.stamp.size
            return size == len(content) and not os.path.islink(path) and source.read(0, size) == content
    except OSError:
        return False


def _job(config: RunConfig, order: LaunchOrder, saved_world: int | None) -> LaunchJob | None:
    """Return the job, with the number of devices that each node starts, or None if the number is unknown.

    With a wrong number, all nodes would wait for a missing rank. A finding reports an unknown number.

    Args:
        config: The base config.
        order: The machines.
        saved_world: Number of ranks that saved the chosen checkpoint; None if unknown, or without a checkpoint.
    """
    devices = order.devices_per_node
    if devices is None:
        world = config.world_size or saved_world
        if world is None:
            return None
        if world % order.nodes:
            raise UsageError(f"{world} ranks cannot be spread evenly over {order.nodes} nodes: give --devices-per-node")
        devices = world // order.nodes
    return LaunchJob(
        config=os.path.abspath(order.output),
        nodes=order.nodes,
        devices_per_node=devices,
        master_addr=order.master_addr,
        script=order.script,
    )
