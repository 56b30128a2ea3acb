"""Turn a plan into a launch config on disk and the command that starts it."""

from __future__ import annotations

import os
from dataclasses import replace

from ckpttool.api.resumes import Answer, resolve
from ckpttool.decide.launch_check import check
from ckpttool.domain.finding import Code, Finding, blocking, unheard
from ckpttool.domain.launch import Launch
from ckpttool.domain.plan import NoResumePoint, ResumePlan
from ckpttool.domain.question import DataQuestion, LaunchOrder, ResumeQuestion, TreeQuestion
from ckpttool.errors import UsageError
from ckpttool.read.records.safe_yaml import read_bytes
from ckpttool.read.storage import LocalStorage
from ckpttool.render.launch import TARGETS, LaunchJob
from ckpttool.write import replace as write


def launch(question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion, order: LaunchOrder) -> Launch | Answer:
    """Write the config that makes the trainer resume as `resolve` says, and spell the command.

    Only the settings of the resume change; comments, order and quoting of the base config stay. The new file is
    written last, in one piece, when everything else is known to be right.

    Returns:
        The launch; or the bare answer where nothing can be resumed from, where a log that was to have a say could not
        be read or showed no step, where no start of the base config can succeed, or where `order.strict` and a finding
        weighs more than a note, or a newer checkpoint was rejected: then nothing is written.

    Raises:
        CkptToolError: The base config cannot be used, or the output exists and may not be replaced.
    """
    if question.config is not None and order.devices_per_node is not None:
        devices = order.nodes * order.devices_per_node
        question = replace(question, config=question.config.started_on(devices))
    answer = resolve(question, choice, data)
    if isinstance(answer.decision, NoResumePoint):
        return answer
    # The trainer need not start in the folder that we were started in.
    load = answer.decision.load
    plan = replace(answer.decision, load=replace(load, load_checkpoint=os.path.abspath(load.load_checkpoint)))
    job = _job(question, plan, order)
    plan = replace(plan, findings=(*_devices_differ(question, plan, job), *plan.findings))
    cannot_start = any(finding.code is Code.TRAINER_KEY_REFUSED for finding in plan.findings)
    if cannot_start or unheard(plan.findings) or (order.strict and (blocking(plan.findings) or plan.point.rejected)):
        return replace(answer, decision=plan)
    target = TARGETS[0]
    commands = target.commands(job)
    config = target.config(_text(order.base), plan)
    content = config.text.encode("utf-8")
    written = not (order.force and _is_already(order.output, content))
    if written:
        write(order.output, content, overwrite=order.force, backup=True)
    return Launch(plan=plan, output=order.output, changes=config.changes, commands=commands, written=written)


def _is_already(path: str, content: bytes) -> bool:
    """Tell whether a file says just that: written again, it would take the place of the older one in `.bak`."""
    try:
        folder, name = os.path.split(path)
        with LocalStorage(folder or ".").open(name) as source:
            size = source.stamp.size
            return size == len(content) and not os.path.islink(path) and source.read(0, size) == content
    except OSError:
        return False


def _job(question: TreeQuestion, plan: ResumePlan, order: LaunchOrder) -> LaunchJob:
    """Say how many devices each node starts; a rank that no node starts would be missed by all others."""
    world = (question.config.world_size if question.config else None) or plan.point.checkpoint.topology.world_size or 1
    if order.devices_per_node is None and world % order.nodes:
        raise UsageError(f"{world} ranks cannot be spread evenly over {order.nodes} nodes: give --devices-per-node")
    return LaunchJob(
        config=os.path.abspath(order.output),
        nodes=order.nodes,
        devices_per_node=order.devices_per_node or world // order.nodes,
        master_addr=order.master_addr,
        script=order.script,
    )


def _devices_differ(question: TreeQuestion, plan: ResumePlan, job: LaunchJob) -> tuple[Finding, ...]:
    if question.config is None:
        return ()
    found = check(question.config, plan, devices=job.nodes * job.devices_per_node)
    return tuple(finding for finding in found if finding not in plan.findings)


def _text(path: str) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read the config {path!r}: {error}") from None
