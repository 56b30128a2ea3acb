"""Choose the checkpoint to resume from, and count the data to skip."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.decide.lost import beyond_limits, with_saves
from ckpttool.core.decide.naming import focused
from ckpttool.core.decide.recorded_health import accepted, record_without_answer
from ckpttool.core.decide.resume import against_refused, choose, objected
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.data_position import DataQuestion, Unknown, skip_of
from ckpttool.core.domain.finding import Finding, Severity, blocking
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.plan import NoResumePoint, Rejection, Resolution, ResumePlan, ResumePoint, Simulation
from ckpttool.core.domain.question import AskedSizes, CheckQuestion, ResumeQuestion, TreeQuestion
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict
from ckpttool.core.errors import IncompleteError, UnknownLayoutError, UsageError
from ckpttool.core.extensions import features, first_imported, imported
from ckpttool.core.storage import is_object_store
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.core.verbs.saved_results import rebuilt, saves_in_trash
from ckpttool.core.verbs.scanning import Tree, Where, looking_at, scan, tree_question
from ckpttool.core.verbs.verifying import session_for
from ckpttool.trainers.base import Refusal, Resume, no_effects
from ckpttool.trainers.registry import phrasings, words_of_logs

if TYPE_CHECKING:
    from ckpttool.core.decide.resume import Pick
    from ckpttool.core.domain.advice import SpikeAdvice, StopAdvice
    from ckpttool.core.domain.data_position import DataPosition
    from ckpttool.core.domain.node import Node
    from ckpttool.core.domain.question import EvidenceQuestion
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.verify.session import Session
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.base import Trainer

TRUSTED_SECONDS = 3600.0
"""Seconds for which a verified, unchanged file is not read again, so that an interrupted run continues quickly."""


_NO_SKIP = "no setting skips these batches: to skip them, remove them from the data set"

_WITNESSES = 16
"""Maximum number of shards per save whose times are read, spread over the ranks; thousands would not improve the
answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Resolution):
    """The decision of `resolve`, and the tree to which it applies."""

    tree: Tree
    question: TreeQuestion
    verdicts: Mapping[tuple[CheckpointKey, tuple[Finding, ...]], Verdict]
    """Verdicts from headers and sizes for the saves that were checked; empty if more was read."""


class PassedOver(NamedTuple):
    """The choice of `resolve`, and the rejected checkpoints."""

    tree: Tree
    question: TreeQuestion
    """The question about the tree."""
    point: ResumePoint | NoResumePoint
    """The choice, with all rejected checkpoints."""


PassedOverRule: TypeAlias = "Callable[[PassedOver], tuple[tuple[Rejection, ...], tuple[Finding, ...]]]"
"""A rule of a feature that returns all rejections with its remedies, and its additional findings."""


class LogEvidence(Protocol):
    """Findings from training logs about the checkpoints of a tree."""

    def choose(self, pick: Pick) -> tuple[ResumePoint | NoResumePoint, SpikeAdvice | StopAdvice | None]:
        """Choose with the evidence of the logs and, if requested, advise how to avoid a spike.

        Args:
            pick: Chooses from a tree whose checkpoints carry the reasons against them.
        """
        ...

    def timed(self, point: ResumePoint) -> ResumePoint:
        """Add the duration of the steps to redo, if the logs show it."""
        ...

    def findings(self, chosen: Checkpoint | None) -> tuple[Finding, ...]:
        """Report unreadable parts of the logs, and the questions they leave open about the chosen checkpoint."""
        ...


class ReadsLogs(Protocol):
    """A function that reads the logs to be used as evidence."""

    def __call__(
        self, inventory: Inventory, question: EvidenceQuestion, *, root: str, stages: int | None, ignore: bool
    ) -> LogEvidence:
        """Apply the logs to the checkpoints.

        Args:
            inventory: The checkpoints with recorded health; with sizes and times if the question needs them.
            question: The logs to use, and how to judge them.
            root: The path of the tree; logs next to the tree are also used.
            stages: Pipeline stages, if known.
            ignore: Whether to ignore the health.

        Raises:
            UsageError: A log does not exist or needs an option, or a spike is to be avoided without any log.
        """
        ...


def resolve(
    question: Where = None,
    choice: ResumeQuestion = ResumeQuestion(),
    data: DataQuestion = DataQuestion(),
    *,
    node: Node | None = None,
) -> Answer:
    """Choose the checkpoint to resume from, and compute where the data starts.

    Before returning, checks that the files of the chosen checkpoint have not changed since they were read.

    Args:
        question: The tree.
        choice: The checkpoints that may be chosen.
        data: The changes to the data.
        node: The disk and the launchers; None for this machine's.

    Raises:
        UnknownLayoutError: There is no tree at the path, or nothing in it can be loaded by its trainer.
        UsageError: An option is invalid, or the config belongs to a different trainer.
        IncompleteError: The tree cannot be read, or changed while it was read.
    """
    question = tree_question(question)
    if choice.evidence is not Level.STRUCTURE or (choice.logs is not None and choice.logs.timeline):
        question = replace(question, sizes=True)
    choice = replace(choice, sizes=_with_config(choice.sizes, question))
    question = replace(question, requested=choice.sizes)
    tree = scan(question)
    refusals = _not_loadable(tree, question)
    choice = _with_focus(choice, tree, question)
    evidence = _evidence(tree, choice, question.config)
    session = session_for(tree, CheckQuestion(level=choice.evidence, jump=0, max_age=TRUSTED_SECONDS, replicas=False))
    # The key includes the findings: to avoid a spike, a checkpoint is judged with additional findings of the detour.
    verdicts: dict[tuple[CheckpointKey, tuple[Finding, ...]], Verdict] = {}

    def verdict_of(checkpoint: Checkpoint) -> Verdict:
        key = checkpoint.key, checkpoint.findings
        return verdicts.get(key) or verdicts.setdefault(key, session.verdict(checkpoint))

    def pick(inventory: Inventory) -> ResumePoint | NoResumePoint:
        return choose(_against(inventory, tree, refusals, choice.sizes), choice, verdict_of)

    with closing(session):
        point, advice = _pick(tree, evidence, pick)
    added: tuple[Finding, ...] = ()
    if point.rejected:
        rejected, added = _on_passed_over(PassedOver(tree, question, point))
        point = replace(point, rejected=rejected)
    decision: ResumePlan | NoResumePoint
    if isinstance(point, NoResumePoint):
        decision = replace(point, advice=advice, in_trash=saves_in_trash(tree.storage))
    else:
        reports = verdict_of(point.checkpoint).reports
        _assert_unchanged(tree.storage, reports)
        point = _timed(tree, point, reports, evidence)
        decision = _with_effects(_plan(tree, point, advice), tree, question, choice.sizes, data)
    context = Context(
        tree=tree,
        question=question,
        choice=choice,
        decision=decision,
        point=point,
        evidence=evidence,
        of_features=added,
    )
    rules = NOTHING_CHOSEN if isinstance(decision, NoResumePoint) else CHOSEN
    decision = replace(decision, findings=tuple(finding for rule in rules for finding in rule(context)))
    verdicts_used = verdicts if choice.evidence is Level.STRUCTURE else {}
    decision = tree.machines.placed(decision, tree.layout, tree.inventory, question, node)
    return Answer(decision=decision, tree=tree, question=question, verdicts=verdicts_used)


class Context(NamedTuple):
    """The decision of `resolve` and its evidence, for rules about it."""

    tree: Tree
    question: TreeQuestion
    choice: ResumeQuestion
    decision: ResumePlan | NoResumePoint
    """The decision, whose findings are the trainer's effects on the start, or why no checkpoint was chosen."""
    point: ResumePoint | NoResumePoint
    evidence: LogEvidence | None
    of_features: tuple[Finding, ...]
    """Features' findings about the rejected checkpoints."""

    @property
    def takes_any_health(self) -> bool:
        """Whether unknown health is accepted, so that it is only a note."""
        return self.choice.ignore_health or self.choice.allow_unknown_health

    @property
    def chosen(self) -> Checkpoint | None:
        """The checkpoint to resume from."""
        return None if isinstance(self.point, NoResumePoint) else self.point.checkpoint


def _logs(context: Context) -> tuple[Finding, ...]:
    """Report unreadable parts of the logs, and the questions they leave open."""
    if context.evidence is None:
        return ()
    findings = context.evidence.findings(context.chosen)
    return accepted(findings) if context.takes_any_health else findings


def _recorded_health(context: Context) -> tuple[Finding, ...]:
    """Report that the health file has no answer for the chosen checkpoint."""
    if context.takes_any_health or context.chosen is None:
        return ()
    named = context.question.health_file is not None
    return record_without_answer(context.tree.book, named=named, health=context.chosen.health)


def _lost_work(context: Context) -> tuple[Finding, ...]:
    """Report that more steps or time are lost than the user allows."""
    return () if isinstance(context.point, NoResumePoint) else beyond_limits(context.point, context.choice)


def _of_decision(context: Context) -> tuple[Finding, ...]:
    """Report how the trainer behaves at such a start, or why no checkpoint was chosen."""
    return context.decision.findings


def _of_tree(context: Context) -> tuple[Finding, ...]:
    """Return the findings about the tree that the resume point does not include."""
    point, tree = context.point, context.tree
    reported = {*point.findings, *(reason for rejection in point.rejected for reason in rejection.reasons)}
    findings = tuple(finding for finding in tree.inventory.findings if finding not in reported)
    if context.chosen is None:
        return findings
    return accepted(findings) if context.takes_any_health else findings


def _rebuilt(context: Context) -> tuple[Finding, ...]:
    """Report shards of the chosen checkpoint that were rebuilt from copies."""
    return () if context.chosen is None else rebuilt(context.chosen)


def _marks(context: Context) -> tuple[Finding, ...]:
    """Report the marks of people on the chosen checkpoint, such as a mark that the user overrides."""
    findings = () if context.chosen is None else context.chosen.findings
    return tuple(finding for finding in findings if finding.code.check == "health" and not blocking([finding]))


def _left_open(context: Context) -> tuple[Finding, ...]:
    """Report the reasons against a skipped checkpoint without which it might have been chosen, such as a lost mark."""
    reasons = (reason for rejection in context.point.rejected for reason in rejection.reasons)
    return tuple(reason for reason in reasons if reason.code.leaves_open and reason.severity is Severity.UNKNOWN)


def _of_features(context: Context) -> tuple[Finding, ...]:
    return context.of_features


Rule: TypeAlias = Callable[[Context], tuple[Finding, ...]]

CHOSEN: tuple[Rule, ...] = (
    _logs,
    _recorded_health,
    _lost_work,
    _of_decision,
    _of_tree,
    _rebuilt,
    _marks,
    _left_open,
    _of_features,
)
NOTHING_CHOSEN: tuple[Rule, ...] = (_logs, _of_decision, _of_features, _of_tree)
"""The rules if no checkpoint was chosen. Each rule adds its findings once and does not remove those of other rules."""


def _on_passed_over(seen: PassedOver) -> tuple[tuple[Rejection, ...], tuple[Finding, ...]]:
    """Return the rejected checkpoints with remedies of features, and additional findings of features about them."""
    findings: list[Finding] = []
    for feature in features():
        if feature.on_passed_over is not None:
            rule: PassedOverRule = imported(feature.on_passed_over)
            rejected, reported = rule(seen)
            seen = seen._replace(point=replace(seen.point, rejected=rejected))
            findings += reported
    return seen.point.rejected, tuple(findings)


def _not_loadable(tree: Tree, question: TreeQuestion) -> dict[CheckpointKey, str]:
    """Return the checkpoints that the layout cannot load, with the reasons.

    Raises:
        UnknownLayoutError: The layout refuses all checkpoints.
    """
    checkpoints = tree.inventory.checkpoints
    answers = ((checkpoint, tree.layout.load(tree.inventory, checkpoint)) for checkpoint in checkpoints)
    refusals = {checkpoint.key: answer.why for checkpoint, answer in answers if isinstance(answer, Refusal)}
    if refusals and len(refusals) == len(checkpoints):
        raise UnknownLayoutError(f"{question.path or tree.inventory.root} {next(iter(refusals.values()))}")
    return refusals


def _against(inventory: Inventory, tree: Tree, refusals: Mapping[CheckpointKey, str], sizes: AskedSizes) -> Inventory:
    """Add to each save the objections of its layout or trainer to loading it at the requested sizes."""
    inventory, trainer = against_refused(inventory, refusals), tree.trainer
    if trainer is None or sizes == AskedSizes():
        return inventory
    return objected(inventory, lambda checkpoint: trainer.objections(checkpoint, sizes))


def _timed(tree: Tree, point: ResumePoint, reports: Iterable[ShardReport], evidence: LogEvidence | None) -> ResumePoint:
    """Add the time of the save and the duration of the lost steps, from the log or, failing that, from file times."""
    stamps = [report.stamp for report in reports if report.stamp is not None]
    times = [stamp.modified_ns for stamp in stamps if stamp.modified_ns is not None]
    point = replace(point, saved_ns=max(times, default=None))

    def stamp_of(shard: Shard) -> int | None:
        try:
            return (shard.stamp or tree.storage.stamp(shard.path)).modified_ns
        except OSError:
            return None

    def written(checkpoint: Checkpoint) -> tuple[int, int] | None:
        shards = checkpoint.shards[:: max(1, len(checkpoint.shards) // _WITNESSES)]
        times = [time for time in map_waiting(stamp_of, (*shards, *checkpoint.shards[-1:])) if time is not None]
        return (min(times), max(times)) if times else None

    if evidence is not None:
        point = evidence.timed(point)
    return with_saves(point, Lineage(tree.inventory), written) if point.lost_steps else point


def _evidence(tree: Tree, choice: ResumeQuestion, config: RunConfig | None) -> LogEvidence | None:
    """Read the logs to be used as evidence.

    Raises:
        UsageError: No feature reads logs.
    """
    if choice.logs is None:
        return None
    gather: ReadsLogs | None = first_imported(lambda feature: feature.log_evidence)
    if gather is None:
        raise UsageError("this ckpttool has no feature that reads logs")
    stages = config.pipeline_stages if config is not None else None
    return gather(tree.inventory, choice.logs, root=tree.storage.root, stages=stages, ignore=choice.ignore_health)


def _pick(
    tree: Tree, evidence: LogEvidence | None, pick: Pick
) -> tuple[ResumePoint | NoResumePoint, SpikeAdvice | StopAdvice | None]:
    if evidence is None:
        return pick(tree.inventory), None
    point, advice = evidence.choose(pick)
    if advice is None:
        return point, None
    return point, with_detours(advice, tree)


def with_detours(
    advice: SpikeAdvice | StopAdvice, tree: Tree | None, formats: Collection[str] = ()
) -> SpikeAdvice | StopAdvice:
    """Return the advice with its detour in the settings of every trainer that supports it.

    Args:
        advice: The advice.
        tree: The tree of the run that will skip the spike; None if unknown.
        formats: Names of the formats of the run's logs. If the trainer supports no detour, the detours have no
            settings.
    """
    if advice.detour is None:
        return advice
    detours = [detour for phrasing in phrasings() if (detour := phrasing.detour(advice)) is not None]
    advised = replace(advice, detour=replace(advice.detour, detours=tuple(detours)))
    if tree is not None and tree.trainer is not None:
        words = tree.trainer.words_for(tree.inventory, formats)
        is_known = True
    else:
        words = words_of_logs(formats)
        is_known = words is not None
    is_supported = words is not None and words.detour(advice) is not None
    return without_settings(advised) if is_known and not is_supported else advised


def without_settings(advice: SpikeAdvice | StopAdvice) -> SpikeAdvice | StopAdvice:
    """Return the advice without settings for its detour; documents name only trainers that have such settings."""
    detour = advice.detour
    if detour is None or not any(settings.config or settings.argument for settings in detour.detours):
        return advice
    detours = tuple(replace(settings, config=(), argument=None) for settings in detour.detours)
    notes = (*advice.notes, _NO_SKIP) if detour.skip_batches else advice.notes
    return replace(advice, detour=replace(detour, detours=detours), notes=notes)


def _with_config(sizes: AskedSizes, question: TreeQuestion) -> AskedSizes:
    """Return the sizes of the next run: from the user, the question or the config, in this order."""
    config = question.config
    if config is None:
        return replace(sizes, world=sizes.world or question.world_size)
    world = sizes.world or question.world_size or config.world_size
    return replace(sizes, world=world, data=sizes.data or config.replicas)


def _with_focus(choice: ResumeQuestion, tree: Tree, question: TreeQuestion) -> ResumeQuestion:
    """Restrict the choice to the checkpoint of the requested shard, and add the file prefix of the config."""
    if question.config is not None:
        choice = replace(choice, saves_as=question.config.prefix)
    if tree.focus is None:
        return choice
    focused(tree.inventory.checkpoints, tree.focus, choice.name)
    # A file's name is more specific than the checkpoint's, if training runs share the folder.
    return replace(choice, name=tree.focus)


def _plan(tree: Tree, point: ResumePoint, advice: SpikeAdvice | StopAdvice | None) -> ResumePlan:
    """Return the plan for a start, without the effects of its trainer."""
    checkpoint = point.checkpoint
    load = tree.layout.load(tree.inventory, checkpoint)
    if isinstance(load, Refusal):
        raise UnknownLayoutError(f"{checkpoint.name} {load.why}")
    return ResumePlan(
        root=tree.inventory.root,
        point=point,
        load=load,
        data=Unknown(why="its trainer was not queried yet"),
        next_step=Step(point.step + 1),
        findings=(),
        advice=advice,
        copies=_to_copy(tree, checkpoint) if is_object_store(tree.inventory.root) else (),
    )


def _with_effects(
    plan: ResumePlan, tree: Tree, question: TreeQuestion, sizes: AskedSizes, data: DataQuestion
) -> ResumePlan:
    """Add the effects of the trainer at such a start: its settings, the position in the data, and its findings."""
    checkpoint, config, trainer = plan.point.checkpoint, question.config, tree.trainer
    if config is not None and config.world_size is None:  # by default, as many as wrote it
        config = config.started_on(checkpoint.topology.world_size)
    resume = Resume(
        plan=plan,
        inventory=tree.inventory,
        storage=tree.storage,
        data=data,
        sizes=sizes,
        config=config,
        environment=question.environment,
    )
    effects = no_effects("a single file") if trainer is None else trainer.effects(resume)
    _assert_it_skips(effects.position, data, trainer)
    objections = () if trainer is None else trainer.objections(checkpoint, sizes)
    advice = plan.advice
    if advice is not None and skip_of(effects.position) is None:
        advice = without_settings(advice)  # this start has no setting for the batches to skip
    return replace(
        plan,
        advice=advice,
        load=replace(effects.load or plan.load, data=effects.settings),
        data=effects.position,
        next_step=effects.next_step or plan.next_step,
        findings=(*effects.findings, *objections),
    )


def _to_copy(tree: Tree, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the files of a checkpoint, and the trainer's companion files."""
    members = tree.layout.members(checkpoint)
    paths = {shard.path for shard in checkpoint.shards}
    waiting = [] if isinstance(members, Refusal) else [*members.paths, *members.records]
    with looking_at(tree.storage.root):
        while waiting:
            path = waiting.pop()
            try:
                if tree.storage.kind(path) is Kind.FOLDER:
                    waiting += [f"{path}/{entry.name}" for entry in tree.storage.entries(path)]
                else:
                    paths.add(path)
            except FileNotFoundError:  # an optional record
                continue
    return tuple(sorted(paths))


def _assert_it_skips(position: DataPosition, data: DataQuestion, trainer: Trainer | None) -> None:
    """Reject options that only a trainer with a configurable number of skipped batches supports."""
    option = None if data.dataset_changed_at is None else "--dataset-changed-at"
    if data.new_dataset:
        option = "--new-dataset"
    if option is not None and trainer is not None and skip_of(position) is None:
        raise UsageError(
            f"{option} applies only to trainers with a setting for the batches to skip; {trainer.title} has none"
        )


def _assert_unchanged(storage: Storage, reports: Iterable[ShardReport]) -> None:
    for report in reports:
        try:
            current = storage.stamp(report.path)
        except OSError:
            current = None
        if current != report.stamp:
            raise IncompleteError(
                f"{report.path} changed while the plan was made; run again when nothing is writing here"
            )


def simulate(answer: Answer, version: str | None = None, *, trainer: str | None = None) -> Simulation:
    """Show the checkpoint that the trainer would load by default, the reason, and the consequence.

    Args:
        answer: The answer of `resolve`.
        version: Version of the trainer, such as `2.1`; None for the newest known version, or the behaviour of all known
            versions.
        trainer: Name of the trainer that the tree must belong to; None for any trainer.

    Raises:
        UsageError: The tree belongs to a different trainer, or the version or this trainer's choice is unknown.
    """
    tree = answer.tree
    title = "a single file" if tree.trainer is None else tree.trainer.title
    if trainer is not None and (tree.trainer is None or tree.trainer.name != trainer):
        raise UsageError(f"{tree.inventory.root} is a tree of {title}: use --simulate own")
    if tree.trainer is None or tree.trainer.simulator is None:
        raise UsageError(f"ckpttool does not know which checkpoint {title} would load on its own")
    session, start = own_start(answer)
    with closing(session):
        return tree.trainer.simulator.pick(start, version)


def own_start(answer: Answer) -> tuple[Session, OwnStart]:
    """Return a session and the facts for a simulated start in the tree.

    The session checks the tree's saves; the caller must close it.
    """
    from ckpttool.trainers.abilities import OwnStart

    tree, question = answer.tree, answer.question
    session = session_for(tree, CheckQuestion(jump=0, max_age=TRUSTED_SECONDS))

    def checked(checkpoint: Checkpoint) -> Verdict:
        return answer.verdicts.get((checkpoint.key, checkpoint.findings)) or session.verdict(checkpoint)

    start = OwnStart(
        storage=tree.storage,
        inventory=tree.inventory,
        checked=checked,
        config=question.config,
        world_size=question.world_size,
    )
    return session, start
