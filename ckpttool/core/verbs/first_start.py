"""Decide whether a run without a checkpoint starts from scratch, because it has never completed a save.

A wrong start from scratch costs all training so far. It is therefore the answer only if the folder, its surroundings,
and ckpttool's own results were searched and nothing shows an earlier save; whatever cannot be searched is unknown.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ckpttool.core.decide.first_start import (
    RECORDED,
    SUMMARY,
    FirstSave,
    LogFacts,
    Names,
    Trace,
    TraceKind,
    and_more,
    last_step_in,
    may_be_log,
    may_be_save,
    may_be_state,
    save_lines,
    trace_in_log,
    unfinished_first_save,
)
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogProblem, StepMetrics
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, ResumePlan
from ckpttool.core.domain.question import DEFAULT_DIR, STDIN, ResumeQuestion, StartQuestion, TreeQuestion
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import CkptToolError, IncompleteError, NothingToResumeError, UnknownLayoutError, UsageError
from ckpttool.core.extensions import first_imported
from ckpttool.core.logs.reading import blocks_of
from ckpttool.core.records import PART_SUFFIX
from ckpttool.core.storage import above, is_local, is_object_store, open_storage, shortest
from ckpttool.core.storage.base import Entry, Kind, LostLinkError, PassedOn, Storage
from ckpttool.core.storage.mounts import mount_table, not_mounted, planned_mounts
from ckpttool.core.verbs.resolving import Answer, resolve
from ckpttool.core.verbs.scanning import Tree, Where, scan, tree_question
from ckpttool.trainers.abilities import OwnStart
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.listing import numbers_in
from ckpttool.trainers.locate import OthersSavesError
from ckpttool.trainers.registry import log_reader, trainer_named, trainers

if TYPE_CHECKING:
    from ckpttool.core.domain.node import Node
    from ckpttool.core.domain.plan import JudgedStart
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.trainers.located import PartTraces

MOST_ENTRIES = 50_000
"""Maximum number of files and folders to search; more are not the output of a run that has not saved yet."""

_MOST_SAVE_LINES = 50
"""Maximum number of log lines about saves that are kept per log."""


def resolve_or_start(
    question: Where = None,
    choice: ResumeQuestion = ResumeQuestion(),
    data: DataQuestion = DataQuestion(),
    start: StartQuestion = StartQuestion(),
    *,
    node: Node | None = None,
) -> Answer:
    """Choose the checkpoint to resume from, and compute where the data starts.

    Before returning, checks that the files of the chosen checkpoint have not changed since they were read.

    Args:
        question: The tree.
        choice: The checkpoints that may be chosen.
        data: The changes to the data.
        start: Whether to accept a run that has never saved, which then starts from scratch.
        node: The disk and the launchers; None for this machine's.

    Raises:
        UnknownLayoutError: There is no tree at the path, or nothing in it can be loaded by its trainer.
        NothingToResumeError: A start from scratch is accepted, but there is a trace of an earlier save.
        UsageError: An option is invalid, or the config belongs to a different trainer.
        IncompleteError: The tree cannot be read, or changed while it was read.
    """
    start.assert_consistent()
    if not start.or_start:
        return resolve(question, choice, data, node=node)
    return _resume_or_start(tree_question(question), choice, data, start, node=node)


def _resume_or_start(
    question: TreeQuestion, choice: ResumeQuestion, data: DataQuestion, start: StartQuestion, *, node: Node | None
) -> Answer:
    if choice.name is not None:
        raise UsageError("--or-start and --checkpoint cannot be used together: the named checkpoint must exist")
    answer = None
    try:
        answer = resolve(question, choice, data, node=node)
    except OthersSavesError:
        raise
    except UnknownLayoutError as error:
        refused = error
    else:
        if isinstance(answer.decision, ResumePlan):
            return replace(answer, decision=replace(answer.decision, or_start=True))
        refused = UnknownLayoutError(f"{answer.tree.inventory.root} has no checkpoint")
        if not _may_be_fresh(answer):
            return answer
    if is_parts(question.path) or (answer is not None and not answer.tree.machines.is_here):
        fresh = _by_parts(question, choice)
    elif question.root is not None:
        raise refused  # the parts were not written
    else:
        fresh = _Search(question, choice, start, refused, answer).decision()
    return _without_tree(fresh, question) if answer is None else replace(answer, decision=fresh)


def _without_tree(decision: FreshStart, question: TreeQuestion) -> Answer:
    """Return the answer about a folder that is not a tree yet, with a tree without a trainer."""
    from ckpttool.core.domain.health import HealthBook
    from ckpttool.trainers.locate import loose_file

    layout = loose_file()
    tree = Tree(
        inventory=Inventory(root=decision.root, layout=layout.name, checkpoints=(), runs=(), findings=()),
        layout=layout,
        storage=open_storage(decision.root),
        focus=None,
        resolved_from=None,
        book=HealthBook(path=None, records=()),
    )
    return Answer(decision=decision, tree=tree, question=question, verdicts={})


def fresh_remark(answer: Answer, layout: str | None = None) -> str | None:
    """Describe the trainer's start without a save in one sentence; None if it is unknown.

    Args:
        answer: A start from scratch.
        layout: The layout that the user named, which shows the trainer.
    """
    start = fresh_start(answer, None, layout)
    return None if start is None else start.reason


def fresh_start(answer: Answer, config: RunConfig | None, layout: str | None = None) -> JudgedStart | None:
    """Return the simulated start of a run that has never saved; None if its trainer is unknown.

    Args:
        answer: A start from scratch.
        config: The config of the start. None if it is unknown.
        layout: The layout that the user named, which shows the trainer.
    """
    decision, tree = answer.decision, answer.tree
    name = decision.trainer if isinstance(decision, FreshStart) else None
    owners = [trainer for trainer in trainers() if trainer.name == name or layout in trainer.layout_names]
    if not owners or owners[0].simulator is None:
        return None
    start = OwnStart(
        storage=_Empty(tree.storage) if tree.trainer is None else tree.storage,
        inventory=tree.inventory,
        checked=_unchecked,
        config=config,
        world_size=None,
    )
    return owners[0].simulator.as_it_stands(start, None)


def _may_be_fresh(answer: Answer) -> bool:
    """Return whether a tree without a resume point has no save at all, or only its first one, unfinished."""
    decision, inventory = answer.decision, answer.tree.inventory
    if not isinstance(decision, NoResumePoint) or not decision.is_sure or answer.tree.focus is not None:
        return False
    if not answer.tree.machines.is_here:
        return not inventory.checkpoints
    if inventory.unlisted or any(finding.code is Code.UNREADABLE for finding in inventory.findings):
        return False
    return not inventory.checkpoints or bool(unfinished_first_save(inventory))


def trace_here(question: TreeQuestion) -> str | None:
    """Return the trace of an earlier save on this machine, which has no checkpoint; empty if it has no trace.

    The result is None if there is a checkpoint, or if the machine cannot be searched.
    """
    try:
        answer = resolve_or_start(replace(question, config=None), start=StartQuestion(or_start=True))
    except NothingToResumeError as error:
        return str(error)
    except CkptToolError:
        return None
    return "" if isinstance(answer.decision, FreshStart) and not answer.decision.set_aside else None


def is_parts(path: str | None) -> bool:
    """Return whether a path is that of parts, which other machines wrote."""
    if path is None:
        return False
    if path == STDIN or path.endswith(PART_SUFFIX):
        return True
    try:
        return any(entry.name.endswith(PART_SUFFIX) for entry in open_storage(path).entries(""))
    except OSError:
        return False


def _by_parts(question: TreeQuestion, choice: ResumeQuestion) -> FreshStart:
    """Return the start from scratch that all machines agree on.

    Raises:
        NothingToResumeError: A machine has a trace of a save.
        IncompleteError: Some parts are missing, or do not record whether there is a trace.
    """
    path = question.path or DEFAULT_DIR
    read: PartTraces | None = first_imported(lambda feature: feature.part_traces)
    if read is None:
        raise IncompleteError(f"{path} has parts, which this ckpttool does not read")
    root, traces = read(path, root=question.root)
    for name, trace in traces.items():
        if trace:
            raise NothingToResumeError(f"{name}: {trace}")
    unknown = [name for name, trace in traces.items() if trace is None]
    if unknown:
        raise IncompleteError(
            f"{path}: no machine has a checkpoint, but it is unknown whether {unknown[0]} has a trace of one: record "
            "the part again with this version, and read why it cannot be searched"
        )
    return FreshStart(
        root=root,
        evidence=choice.evidence,
        rejected=(),
        findings=(),
        ground=f"has no checkpoint on {counted(len(traces), 'machine')}",
        trainer=None if question.config is None else question.config.trainer,
    )


class _Empty(PassedOn):
    """A folder without files, for a simulated start in a folder that may not exist."""

    def entries(self, folder: str) -> list[Entry]:
        """Return no entries for the folder itself."""
        if folder:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        return []

    def kind(self, path: str) -> Kind:
        """Return that the root is a folder; nothing else exists."""
        if path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Kind.FOLDER

    def stamp(self, path: str) -> FileStamp:
        """Report that the file does not exist."""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Report that the file does not exist."""
        del limit
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _unchecked(checkpoint: Checkpoint) -> Verdict:
    """Return a verdict with the findings of the scan, because a first start can only meet an unfinished save."""
    return Verdict(
        key=checkpoint.key,
        name=checkpoint.name,
        step=checkpoint.step,
        level=Level.STRUCTURE,
        reports=(),
        findings=checkpoint.findings,
    )


class _Search:
    """The search for traces of earlier saves."""

    def __init__(
        self,
        question: TreeQuestion,
        choice: ResumeQuestion,
        start: StartQuestion,
        refused: UnknownLayoutError,
        answer: Answer | None,
    ) -> None:
        self._question, self._choice, self._refused = question, choice, refused
        self._tree = None if answer is None else answer.tree
        self._path = shortest(DEFAULT_DIR if question.path is None else question.path)
        if question.path is None and self._tree is not None:
            self._path = self._tree.storage.root
        unfinished = () if answer is None else unfinished_first_save(answer.tree.inventory)
        self._first = FirstSave(every=start.save_every or _interval(question), unfinished=unfinished)
        patterns = [trainer.only_after_saves for trainer in trainers() if trainer.only_after_saves]
        self._names = Names(records=re.compile("|".join(patterns)))
        self._reader = log_reader(None if choice.logs is None else choice.logs.logs.columns)
        self._layouts = [signs.layout for trainer in trainers() for signs in trainer.layouts]
        self._aside = self._paths_of_unfinished()
        self._temporary: list[str] = []
        """Paths under which a trainer writes before a save is complete, relative to the folder that is searched."""
        self._entries = 0
        self._withheld: list[IncompleteError] = []
        """Places that could not be searched; a trace elsewhere decides before them."""
        self._logs: dict[str, None] = {}
        self._read: list[str] = []

    def decision(self) -> FreshStart:
        """Return the start from scratch.

        Raises:
            NothingToResumeError: There is a trace of a save.
            IncompleteError: A place that may have one cannot be searched.
            UnknownLayoutError: The path is not one of a folder, or has saves that ckpttool does not know.
        """
        ground = self._ground()
        traces = [*self._own_results(), *self._in_places()]
        traces += [*self._in_temporary(), *self._in_logs()]
        traces.sort()
        objection = self._first.objection()
        if objection is not None:
            named = self._first.unfinished[0].name
            traces.insert(0, Trace(TraceKind.LEFTOVER, f"the unfinished save {named}", objection))
        if traces:
            raise NothingToResumeError(
                f"{self._path} has no checkpoint to resume from, but this is not a first start: "
                f"{traces[0].text}{and_more(traces)}; restore the checkpoints, or remove the trace if it is from "
                "another run"
            )
        self._assert_outside_saves()
        for error in self._withheld:
            raise error
        config = self._question.config
        trainer = None if self._tree is None or self._tree.trainer is None else self._tree.trainer.name
        return FreshStart(
            root=self._path if self._tree is None else self._tree.inventory.root,
            evidence=self._choice.evidence,
            rejected=(),
            findings=(),
            ground=ground,
            set_aside=(*(save.name for save in self._first.unfinished), *self._temporary),
            logged=tuple(self._read),
            trainer=trainer if config is None else config.trainer,
        )

    def _paths_of_unfinished(self) -> set[str]:
        """Return the files and folders of the unfinished save, as the search names them."""
        if self._tree is None:
            return set()
        paths: set[str] = set()
        for save in self._first.unfinished:
            members = self._tree.layout.members(save)
            paths |= {save.name} if isinstance(members, Refusal) else {*members.paths, *members.records}
        return {f"{self._tree.storage.root}/{path}" for path in paths}

    def _in_temporary(self) -> Iterator[Trace]:
        """Yield a trace if temporary files are those of several saves, of which at least one is not the first."""
        steps = {number for path in self._temporary for number in numbers_in(path.partition("/")[0])[:1]}
        steps |= set() if self._first.step is None else {self._first.step}
        if self._temporary and len(steps) > 1:
            yield Trace(TraceKind.LEFTOVER, f"{self._path}/{self._temporary[0]}", "is not the only unfinished save")

    def _ground(self) -> str:
        """Describe the folder.

        Raises:
            UnknownLayoutError: It is not a folder.
            IncompleteError: It may be in a file system that is not mounted.
        """
        if self._path == STDIN or not (is_local(self._path) or is_object_store(self._path)):
            raise self._refused
        if is_local(self._path):
            _assert_mounted(self._path)
        try:
            if open_storage(self._path).kind("") is not Kind.FOLDER:
                raise self._refused
        except FileNotFoundError as error:
            if isinstance(error, LostLinkError) or not self._is_reachable():
                raise self._refused from None
            return "does not exist"
        except OSError:
            raise self._refused from None
        return "has only an unfinished save" if self._first.unfinished else "has no checkpoint"

    def _is_reachable(self) -> bool:
        """Return whether the nearest existing path above an absent one is a folder or, in a store, the bucket exists.

        Raises:
            IncompleteError: It cannot be listed.
        """
        nearest = above(self._path)
        if is_local(self._path):
            while not os.path.lexists(nearest):
                nearest = above(nearest) if nearest not in {"", os.curdir} else os.curdir
            return os.path.isdir(nearest)  # not a file, and no broken link
        scheme, _, inside = self._path.partition("://")
        bucket = f"{scheme}://{inside.partition('/')[0]}"
        try:
            open_storage(bucket).entries("")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise IncompleteError(f"{bucket} cannot be listed: {error.strerror or error}") from None
        return True

    def _own_results(self) -> Iterator[Trace]:
        """Yield the results that earlier commands stored outside the tree."""
        if not is_local(self._path):
            return
        from ckpttool.core.records.ledger import load
        from ckpttool.core.verbs.saved_results import memory_place

        roots = [self._path]
        roots += [os.path.join(self._path, place) for trainer in trainers() for place in trainer.places]
        for root in dict.fromkeys(roots):
            place = memory_place(root)
            shards = [] if place is None or not os.path.exists(place) else load(place).shards
            if place is not None and any(not self._is_aside(f"{root}/{path}") for path in shards):
                yield Trace(TraceKind.OWN, place, f"records that ckpttool checked a checkpoint in {root}")

    def _is_aside(self, path: str) -> bool:
        """Return whether a path belongs to the unfinished save."""
        return any(path == aside or path.startswith(f"{aside}/") for aside in self._aside)

    def _in_places(self) -> Iterator[Trace]:
        """Yield the traces in names, and collect the logs."""
        roots = [self._path, *self._further_places()]
        if self._tree is not None and not self._tree.storage.root.startswith(f"{self._path}/"):
            roots.append(self._tree.storage.root)
        for root in dict.fromkeys(roots):
            try:
                yield from self._below(open_storage(root))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self._withheld.append(_unsearchable(root, error))
        if self._is_in_run_folder():
            for logs in self._reader.near(self._path):
                self._logs |= dict.fromkeys(logs)
            yield from self._records_beside_saves()

    def _is_in_run_folder(self) -> bool:
        """Return whether the folder has the name of a folder of saves in the folder of a run."""
        name = os.path.basename(self._path)
        return any(place.endswith(name) and "checkpoint" in name for place in self._places_of_owners())

    def _places_of_owners(self) -> list[str]:
        name = os.path.basename(self._path)
        owners = [trainer for trainer in trainers() if name in {place.rpartition("/")[2] for place in trainer.places}]
        return list(dict.fromkeys(place for trainer in owners for place in trainer.places))

    def _further_places(self) -> Iterator[str]:
        """Yield the other folders in which the same trainers save, next to this one."""
        if not self._is_in_run_folder():
            return
        parent = above(self._path)
        for place in self._places_of_owners():
            name = place.rpartition("/")[2]
            if "checkpoint" in name and "*" not in place:
                yield os.path.join(parent, name)

    def _records_beside_saves(self) -> Iterator[Trace]:
        """Yield the records next to the saves, and collect the logs there."""
        parent = above(self._path)
        storage = open_storage(parent)
        for path in dict.fromkeys(path for trainer in trainers() for path in trainer.beside_saves):
            try:
                storage.kind(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self._withheld.append(_unsearchable(f"{parent}/{path}", error))
                continue
            yield Trace(TraceKind.RECORD, os.path.join(parent, path), RECORDED)
        try:
            entries = storage.entries("")
        except FileNotFoundError:
            return
        except OSError as error:
            self._withheld.append(_unsearchable(parent, error))
            return
        names = [entry.name for entry in entries if entry.kind is Kind.FILE and may_be_log(entry.name)]
        self._logs |= dict.fromkeys(os.path.join(parent, name) for name in sorted(names))

    def _assert_outside_saves(self) -> None:
        """Raise an error if the folder above has saves itself: the path is too deep, or names a lost save.

        Raises:
            NothingToResumeError: It has saves.
        """
        parent, own = above(self._path), os.path.basename(self._path)
        try:
            entries = open_storage(parent).entries("")
            if not any(entry.kind is Kind.FOLDER and may_be_save(entry.name) for entry in entries if entry.name != own):
                return
            inventory = scan(TreeQuestion(path=parent)).inventory
        except (OSError, CkptToolError):  # many folders of users cannot be listed
            return
        saves = [save.name for save in inventory.checkpoints if save.name != own]
        if saves and inventory.root == parent:
            raise NothingToResumeError(
                f"{self._path} has no checkpoint to resume from, but this is not a first start: the folder above it, "
                f"{parent}, has {saves[-1]}{and_more(saves)}; to resume that run, give {parent}; for a new run, give "
                "a folder elsewhere"
            )

    def _below(self, storage: Storage) -> Iterator[Trace]:
        """Yield the traces in a folder and its subfolders, and collect the logs there.

        Raises:
            OSError: The folder does not exist, or cannot be listed.
            IncompleteError: It has too many files.
        """
        waiting = [("", storage.entries(""))]
        while waiting:
            folder, entries = waiting.pop()
            self._entries += len(entries)
            if self._entries > MOST_ENTRIES:
                raise IncompleteError(f"{self._path} has more than {MOST_ENTRIES} files: give the folder of the saves")
            for entry in sorted(entries):
                inner = f"{folder}/{entry.name}" if folder else entry.name
                path = f"{storage.root}/{inner}"
                if path in self._aside:
                    continue
                is_state = entry.kind is Kind.FOLDER or may_be_state(entry.name)
                if is_state and any(layout.is_unfinished(inner) for layout in self._layouts):
                    self._temporary.append(inner)
                    continue
                inside = self._inside(path) if entry.kind is Kind.FOLDER else None
                trace = self._names.trace(path, inner, inside=None if inside is None else len(inside))
                if trace is not None:
                    yield trace
                elif inside is not None:
                    waiting.append((inner, inside))
                elif entry.kind is Kind.LOST:
                    broken = f"{path} is a broken link: mount its target, or remove it"
                    self._withheld.append(IncompleteError(broken))
                elif may_be_log(entry.name):
                    self._logs[path] = None

    def _inside(self, path: str) -> list[Entry]:
        """List a subfolder; a link to a folder that is searched anyway has nothing of its own."""
        if is_local(path) and os.path.islink(path):
            target, root = os.path.realpath(path), os.path.realpath(self._path)
            if target != root and not target.startswith(f"{root}/"):
                leads_out = f"{path} is a link to {target}: give that folder, or remove the link"
                self._withheld.append(IncompleteError(leads_out))
            return [Entry("", Kind.OTHER)]
        try:
            return open_storage(path).entries("")
        except OSError as error:
            self._withheld.append(_unsearchable(path, error))
            return [Entry("", Kind.OTHER)]

    def _in_logs(self) -> Iterator[Trace]:
        """Yield the traces in the logs that were given or found."""
        evidence = self._choice.logs
        for pattern in () if evidence is None else (*evidence.logs.patterns, *evidence.timeline):
            if is_local(pattern) and pattern != STDIN:
                _assert_mounted(pattern.partition("*")[0])
            try:
                self._logs |= dict.fromkeys(self._reader.expand([pattern]))
            except UsageError:  # before the first start, there is no log
                continue
        for path in self._logs:
            try:
                facts = self._facts(path)
            except UsageError as error:  # a table whose steps have an unknown name
                self._withheld.append(IncompleteError(f"{error}; or move {path} if it is not a log"))
                continue
            trace = trace_in_log(facts, self._first)
            if trace is not None:
                yield trace
            elif facts.last_step is not None:
                self._read.append(path)

    def _facts(self, path: str) -> LogFacts:
        """Read the steps and the saves in a log.

        Raises:
            UsageError: It cannot be read unless another option is given.
        """
        last: int | None = None
        is_known = path.rpartition("/")[2] != SUMMARY
        for item in self._reader.read(path) if is_known else ():
            if isinstance(item, StepMetrics):
                last = item.step if last is None else max(last, item.step)
            elif isinstance(item, LogProblem) and item.ends_the_log:
                if item.reason != self._reader.no_format:
                    unread = f"{path} {item.reason}: it may show that the run saved"
                    self._withheld.append(IncompleteError(unread))
                is_known = False
        saves: list[bytes] = []
        for block in blocks_of(path) if path != STDIN else ():
            if isinstance(block, LogProblem):
                continue
            saves += islice(save_lines(block.data), _MOST_SAVE_LINES - len(saves))
            step = None if is_known else last_step_in(block.data, summary=path.endswith(SUMMARY))
            if step is not None:
                last = step if last is None else max(last, step)
        return LogFacts(path=path, last_step=last, saves=tuple(saves))


def _interval(question: TreeQuestion) -> int | None:
    """Return the number of steps between saves, by the config; None if unknown."""
    if question.config is None:
        return None
    return trainer_named(question.config.trainer).save_interval(question.config, open_storage(os.curdir))


def _assert_mounted(path: str) -> None:
    """Raise an error if the file system of a path may not be mounted.

    Raises:
        IncompleteError: It may not be mounted.
    """
    why = not_mounted(path, table=mount_table(), planned=planned_mounts())
    if why is not None:
        raise IncompleteError(f"{path}: {why}: mount it, or create the folder if the path is right")


def _unsearchable(path: str, error: OSError) -> IncompleteError:
    return IncompleteError(f"{path} cannot be searched for traces of a save: {error.strerror or error}")
