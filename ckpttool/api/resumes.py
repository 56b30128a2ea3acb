"""Choose the checkpoint to resume from, and count the data to skip."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpttool.api.checks import session_for
from ckpttool.api.trees import Tree, scan
from ckpttool.decide.data_position import exact_batches_near, moved_on, next_step, plan_data
from ckpttool.decide.lineage import Course
from ckpttool.decide.naming import focused
from ckpttool.decide.recorded_health import unheard_record
from ckpttool.decide.resume import choose
from ckpttool.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.domain.data_position import DataEffect, DataPosition, Samples
from ckpttool.domain.finding import Finding
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.load_settings import LoadSettings
from ckpttool.domain.plan import NoResumePoint, PastSizes, ResumePlan, ResumePoint, Simulation, SkipAnswer
from ckpttool.domain.progress import newest_first
from ckpttool.domain.question import DEFAULT_DIR, CheckQuestion, DataQuestion, ResumeQuestion, TreeQuestion
from ckpttool.domain.shard import FormatName
from ckpttool.domain.units import Step
from ckpttool.domain.verdict import Level, Verdict
from ckpttool.errors import IncompleteError, NothingToResumeError, UnknownLayoutError, UsageError
from ckpttool.formats import read_header
from ckpttool.storage import above, open_storage
from ckpttool.storage.base import Storage
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.common.launchers import jobs_of
from ckpttool.trainers.mindformers.load import (
    LOAD_FORMAT,
    counts_data_itself,
    data_settings,
    load_keys,
    planned_skip,
)
from ckpttool.trainers.mindformers.loaded_instead import Start, loaded_instead
from ckpttool.trainers.registry import told_skip

if TYPE_CHECKING:
    from ckpttool.decide.detour import Pick
    from ckpttool.decide.log_evidence import Evidence
    from ckpttool.domain.advice import SpikeAdvice, StopAdvice
    from ckpttool.domain.node import Node
    from ckpttool.domain.settings import RunConfig
    from ckpttool.trainers.mindformers.train_config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What `resolve` decided, and what it looked at."""

    decision: ResumePlan | NoResumePoint
    tree: Tree
    question: TreeQuestion


def resolve(question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion, *, node: Node | None = None) -> Answer:
    """Choose the checkpoint to resume from, and say where the data starts.

    The chosen one is looked at once more before it is returned: a save or a prune beside us must not make the
    answer false.

    `node` says which disk this is and what launchers tell; None: this machine.

    Raises:
        CkptToolError: The question cannot be answered; the class says why.
    """
    if choice.evidence is not Level.STRUCTURE or (choice.logs is not None and choice.logs.timeline):
        question = replace(question, sizes=True)
    tree = scan(question)
    answers = [tree.layout.load(tree.inventory, checkpoint) for checkpoint in tree.inventory.checkpoints]
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    if refusals and len(refusals) == len(answers):
        raise UnknownLayoutError(f"{question.path} {refusals[0].why}")
    choice = _with_focus(choice, tree)
    if question.config is not None:
        choice = replace(choice, saves_as=question.config.prefix)
    evidence = _evidence(tree, choice, question.config)
    session = session_for(tree, CheckQuestion(level=choice.evidence, jump=0))
    verdicts: dict[CheckpointKey, Verdict] = {}

    def verdict_of(checkpoint: Checkpoint) -> Verdict:
        if checkpoint.key not in verdicts:
            verdicts[checkpoint.key] = session.verdict(checkpoint)
        return verdicts[checkpoint.key]

    def pick(inventory: Inventory) -> ResumePoint | NoResumePoint:
        return choose(inventory, choice, verdict_of)

    point, advice = _pick(tree, evidence, pick)
    decision: ResumePlan | NoResumePoint
    if isinstance(point, NoResumePoint):
        decision = replace(point, findings=(*point.findings, *_beyond(tree, point)), advice=advice)
    else:
        _assert_unchanged(tree.storage, verdicts[point.checkpoint.key])
        decision = _plan(tree, point, data, question, advice)
        if not choice.ignore_health:
            unheard = unheard_record(tree.book, named=question.health_file is not None)
            decision = replace(decision, findings=(*unheard, *decision.findings))
    if evidence is not None:
        chosen = None if isinstance(point, NoResumePoint) else point.checkpoint
        decision = replace(decision, findings=(*evidence.findings(chosen), *decision.findings))
    return Answer(decision=_from_here(decision, tree, question, node), tree=tree, question=question)


def _from_here(
    decision: ResumePlan | NoResumePoint, tree: Tree, question: TreeQuestion, node: Node | None
) -> ResumePlan | NoResumePoint:
    """Say where other machines may have what is not seen from this one."""
    jobs = jobs_of(os.environ if node is None else node.environment)
    if not jobs and isinstance(decision, ResumePlan):
        return decision  # nobody speaks of other machines
    from ckpttool.storage.mounts import mount_of, mount_table
    from ckpttool.trainers.mindformers.one_node import judge_one_node

    inventory, config = tree.inventory, question.config
    shards = [shard.path for one in inventory.checkpoints[:1] for shard in one.shards[:1]]
    declared = (question.world_size, config.world_size if config is not None else None)
    return judge_one_node(
        decision,
        inventory,
        declared=[world for world in declared if world is not None],
        jobs=jobs,
        mount=mount_of(os.path.join(inventory.root, *shards), mount_table() if node is None else node.mounts),
    )


def _beyond(tree: Tree, point: ResumePoint | NoResumePoint) -> tuple[Finding, ...]:
    """Return what is to be said of the tree and the point does not say itself."""
    said = {*point.findings, *(reason for one in point.rejected for reason in one.reasons)}
    return tuple(finding for finding in tree.inventory.findings if finding not in said)


def _evidence(tree: Tree, choice: ResumeQuestion, config: RunConfig | None) -> Evidence | None:
    """Read the logs that shall have a say."""
    if choice.logs is None:
        return None
    from ckpttool.api.evidence import gather

    stages = config.pipeline_stages if config is not None else None
    return gather(tree.inventory, choice.logs, stages=stages, ignore=choice.ignore_health)


def _pick(
    tree: Tree, evidence: Evidence | None, pick: Pick
) -> tuple[ResumePoint | NoResumePoint, SpikeAdvice | StopAdvice | None]:
    if evidence is None:
        return pick(tree.inventory), None
    if evidence.question.spike is None:
        return pick(evidence.inventory), None
    from ckpttool.decide.detour import go_around
    from ckpttool.trainers.registry import told_trainers

    point, advice = go_around(evidence, pick)
    return point, told_trainers(advice)


def _with_focus(choice: ResumeQuestion, tree: Tree) -> ResumeQuestion:
    """Take the checkpoint of the one shard that was given, and no other beside it."""
    if tree.focus is None:
        return choice
    focused(tree.inventory.checkpoints, tree.focus, choice.name)
    # A file's name says more than the checkpoint's, where trainings share the folder.
    return replace(choice, name=tree.focus)


def _plan(
    tree: Tree,
    point: ResumePoint,
    data: DataQuestion,
    question: TreeQuestion,
    advice: SpikeAdvice | StopAdvice | None,
) -> ResumePlan:
    checkpoint, config = point.checkpoint, own_train_config(question.config)
    if checkpoint.step is None:
        raise AssertionError(f"choose() took {checkpoint.name}, whose step is unknown")
    if config is not None and config.world_size is None:  # as many as wrote it, unless somebody says otherwise
        config = config.started_on(checkpoint.topology.world_size or len(checkpoint.ranks) or None)
    wanted = _with_config(data, config)
    position = _data(checkpoint, Course(tree.inventory).past(checkpoint), wanted, config, advice)
    plan = ResumePlan(
        root=tree.inventory.root,
        point=point,
        load=replace(_load(tree, checkpoint), data=data_settings(position)),
        data=position,
        next_step=next_step(checkpoint.step, checkpoint.scalars.global_batch_size, wanted),
        findings=_beyond(tree, point),
        advice=advice,
    )
    start = Start(
        plan=plan,
        inventory=tree.inventory,
        load_path=os.path.abspath(plan.load.path),
        config=config,
        fault_tolerance=question.fault_tolerance,
        deduplicated=_deduplicated(tree.storage, checkpoint) if config is not None and config.data_parallel else None,
    )
    plan = replace(plan, findings=(*loaded_instead(start), *_consequences(plan, data, config), *plan.findings))
    if config is None or config.streaming is None:
        return plan
    from ckpttool.api.streams import from_states

    return from_states(plan, config, config.streaming, data)


def own_train_config(config: RunConfig | None) -> TrainConfig | None:
    """Narrow."""
    if config is None:
        return None
    from ckpttool.trainers.mindformers.train_config import own

    return own(config)


def _load(tree: Tree, checkpoint: Checkpoint) -> LoadSettings:
    load = tree.layout.load(tree.inventory, checkpoint)
    if isinstance(load, Refusal):
        raise UnknownLayoutError(f"{checkpoint.name} {load.why}")
    return load


def _deduplicated(storage: Storage, checkpoint: Checkpoint) -> bool | None:
    """Ask a shard whether each tensor lies in one of them alone; None where it does not say."""
    shard = checkpoint.shards[0]
    try:
        with storage.open(shard.path) as source:
            said = dict(read_header(source, named=shard.format).metadata).get("remove_redundancy")
    except OSError as error:
        raise IncompleteError(f"{shard.path} cannot be read: {error.strerror or error}") from None
    return None if said is None else said == "True"


def _data(
    checkpoint: Checkpoint,
    past: PastSizes,
    wanted: DataQuestion,
    config: RunConfig | None,
    advice: SpikeAdvice | StopAdvice | None,
) -> DataPosition:
    """Say where the data go on: behind the checkpoint, or behind what has to be gone around."""
    step, recorded = checkpoint.step or Step(0), checkpoint.scalars.global_batch_size
    skip = plan_data(step, recorded, wanted, past)
    if advice is not None and advice.detour is not None and advice.followed:
        return moved_on(skip, plan_data(advice.detour.last_skipped, recorded, wanted, past))
    if config is not None and skip.samples is not None and counts_data_itself(checkpoint.scalars, wanted):
        return Samples(samples=skip.samples, effect=DataEffect.UNKNOWN, unchanged=skip)
    return skip


def _consequences(plan: ResumePlan, data: DataQuestion, config: TrainConfig | None) -> tuple[Finding, ...]:
    """Say what MindFormers will make of this plan: counters that it rounds, settings that disagree."""
    if config is not None:
        from ckpttool.trainers.mindformers import launch_check

        return (*config.findings, *launch_check.check(config, plan))
    if data.new_global_batch is None and data.sink_size is None:
        return ()
    from ckpttool.trainers.mindformers.counters import mindformers_counters

    counters = mindformers_counters(
        scalars=plan.point.checkpoint.scalars,
        new_global_batch_size=planned_skip(plan).global_batch_size,
        new_sink_size=planned_skip(plan).sink_size,
        legacy=load_keys(plan.load).use_legacy_format,
    )
    return counters.findings


def _with_config(data: DataQuestion, config: RunConfig | None) -> DataQuestion:
    if config is None:
        return data
    return replace(
        data,
        new_global_batch=data.new_global_batch or config.global_batch_size,
        sink_size=data.sink_size or config.sink_size,
    )


def _assert_unchanged(storage: Storage, verdict: Verdict) -> None:
    for report in verdict.reports:
        try:
            now = storage.stamp(report.path)
        except OSError:
            now = None
        if now != report.stamp:
            raise IncompleteError(f"{report.path} changed while the plan was made; run again when nothing writes here")


def scale_skip(data: DataQuestion, *, steps: int | None = None, path: str | None = None) -> SkipAnswer:
    """Compute where the data starts after the global batch size changed.

    Args:
        data: Batch sizes, segments and sink size.
        steps: Batches consumed; None: those of the segments, or of the tree's resume point.
        path: A tree whose resume point gives steps and old batch size.

    Raises:
        UsageError: Steps or the old batch size are not known.
    """
    if path is not None and steps is not None:
        raise UsageError("give --steps or DIR, not both")
    told = sum(segment.steps for segment in data.segments)
    recorded, past = None, PastSizes()
    if steps is None and (path is not None or not data.segments):
        steps, recorded, past = _resume_point_of(path, data)
    total = Step(told if steps is None else steps)
    old = recorded if recorded is not None else data.old_global_batch
    if old is None and told < total:
        raise UsageError("give --old-gbs: the global batch size of the run that wrote the checkpoint")
    skip = plan_data(total, recorded, data, past)
    samples, new = skip.samples or 0, skip.global_batch_size or 1
    exact = () if skip.repeated_samples == 0 else exact_batches_near(samples, new, sink_size=skip.sink_size)
    before = None if data.segments else old
    return SkipAnswer(skip=skip, steps=total, old_global_batch=before, exact_sizes=exact, told=told_skip(skip))


def _resume_point_of(path: str | None, data: DataQuestion) -> tuple[int | None, int | None, PastSizes]:
    """Return step and global batch size of the checkpoint that `resolve` would choose, and what came before it."""
    if path is None and not os.path.isdir(DEFAULT_DIR):
        old, new = data.old_global_batch or 1, data.new_global_batch or 1
        common = math.gcd(old, new)
        rule = f"data_skip_steps = steps * {old // common} // {new // common}" if data.old_global_batch else "steps"
        raise UsageError(f"give --steps or DIR, there is no {DEFAULT_DIR} here (the rule: {rule})")
    answer = resolve(TreeQuestion(path=path or DEFAULT_DIR), ResumeQuestion(), DataQuestion())
    decision = answer.decision
    if isinstance(decision, NoResumePoint):
        raise NothingToResumeError(f"nothing in {decision.root} can be resumed from; ckpttool resolve says why")
    chosen = decision.point.checkpoint
    return chosen.step, chosen.scalars.global_batch_size, Course(answer.tree.inventory).past(chosen)


def _world_of(answer: Answer, newest: Checkpoint | None) -> int | None:
    """Return how many ranks would start; None where only the folders tell, of which none holds a checkpoint."""
    if newest is not None:
        return newest.topology.world_size or 1
    config = answer.question.config
    return answer.question.world_size or (config.world_size if config else None)


def simulate(answer: Answer, version: str) -> Simulation:
    """Tell what a version of MindFormers would pick in the same tree by itself, and why.

    Raises:
        UsageError: The version is not known.
    """
    from ckpttool.trainers.mindformers.simulate import simulate as pick
    from ckpttool.trainers.mindformers.simulate.seen import MindFormersSettings
    from ckpttool.trainers.mindformers.simulate.view import view_for_mindformers

    inventory, config = answer.tree.inventory, own_train_config(answer.question.config)
    newest = next(iter(newest_first(inventory.checkpoints)), None)
    fmt = config.load_ckpt_format if config else LOAD_FORMAT[newest.format if newest else FormatName.MINDSPORE_CKPT]
    settings = MindFormersSettings(
        load_ckpt_format=fmt,
        world_size=_world_of(answer, newest),
        use_checkpoint_health_monitor=config.use_checkpoint_health_monitor if config else False,
    )
    output = open_storage(above(inventory.root))
    return pick(view_for_mindformers(answer.tree.storage, settings, output=output), version)
