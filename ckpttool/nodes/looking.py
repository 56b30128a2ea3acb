"""Record this machine's files of a tree, so that a different machine can answer for the whole tree."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ckpttool.core.decide.naming import LATEST, named
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.manifest import Sealing
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.scalars import ShardFacts
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport, Verdict
from ckpttool.core.errors import CkptToolError
from ckpttool.core.records import BIRTH_FOLDER, HEAL_JOURNAL, JOURNAL, MARKS, OWN_FOLDER, SEALS_BESIDE, is_manifest
from ckpttool.core.records.journal import TRASH
from ckpttool.core.records.manifest import MANIFEST_LIMIT
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verbs.saved_results import found_damaged, with_found_damaged
from ckpttool.core.verbs.scanning import Tree, scanned
from ckpttool.core.verbs.sealing import not_sealed
from ckpttool.core.verbs.verifying import content_engine, verify
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.session import reports_of
from ckpttool.nodes.sealing import seal_share
from ckpttool.nodes.storage import Answers, Mine, NotingStorage, SharedOut, inner_of, lend, root_of_key, take_back
from ckpttool.trainers.common.loose_file import SHARD_SUFFIXES
from ckpttool.trainers.listing import HEAD_BYTES, list_root
from ckpttool.trainers.located import Located
from ckpttool.trainers.registry import trainer_of, trainers

if TYPE_CHECKING:
    from ckpttool.core.records.damaged import FoundDamaged
    from ckpttool.core.verify.observation import Engine

DEEPEST = 6
"""Maximum depth, below a tree, of the folders in which trainers store files of their saves."""

MOST_OF_A_RECORD = 1 << 20
"""Maximum bytes that a part stores of a record next to the shards, if no layout reads the record here."""

MOST_OF_ALL = 32 << 20
"""Maximum total bytes of all such partial records."""

MOST_OF_A_VALUE = 32 << 10
"""Maximum bytes of an archive to read: it may be a counter or a loader's state, but not a significant tensor."""

MOST_VALUES = 64
"""Maximum number of such archives to read per file."""

MOST_PIECES = 128 << 10
"""Maximum bytes that a part stores of a file read in pieces; if more was read, the part stores none of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """This machine's view: all data that a layout, check or rule may need on a different machine."""

    answers: Answers
    reports: Mapping[str, ShardReport]
    """The report on each shard, by the shard's path."""
    saves: Mapping[str, str]
    """The name of each shard's save, by the shard's path; strays have no save."""
    sealings: tuple[Sealing, ...] = ()
    """The seals, if any were requested; newest save first."""
    damaged: tuple[FoundDamaged, ...] = ()
    """Files whose content earlier checks on this machine found damaged, by path."""


def view_of(
    located: Located | None,
    root: str,
    question: CheckQuestion,
    *,
    mine: Mine | None = None,
    share: tuple[int, int] | None = None,
) -> NodeView:
    """Record the contents of a folder on this machine, with any part of a tree.

    Args:
        located: The tree in the folder; None if there is no tree, or too little of a tree to recognize it.
        root: The path of the folder.
        question: The saves to check, and the level; for all other saves, the headers are read. A save that is missing
            here is on other machines.
        mine: This process's share of a listing, if several processes record one disk; None for all of it.
        share: The number of this part, from 1, and the total, if the files read are to be sealed.
    """
    answers = Answers()

    def shared_out(storage: Storage, inner: str) -> Storage:
        return storage if mine is None else SharedOut(storage, mine, inner, answers.divided)

    def open_inner(inner_path: str, path: str) -> Storage:
        inner, inner_storage = inner_of(path, root), LocalStorage(os.path.normpath(f"{root}/{inner_of(path, root)}"))
        return NotingStorage(inner_path, shared_out(inner_storage, inner), answers, inner)

    trainer = None if located is None else trainer_of(located.layout)
    by_scalars = located is not None and (trainer is None or trainer.scalars is not None)
    lend("noted", root, open_inner)
    try:
        storage = open_storage(root_of_key("noted", root, root))
        remaining = _walk(storage, root)
        reports: dict[str, ShardReport] = {}
        saves: dict[str, str] = {}
        sealings: list[Sealing] = []
        with suppress(CkptToolError, OSError):  # it is recorded, and judged together with all parts
            if located is not None:
                tree, answered = _ask(replace(located, storage=storage, listing=list_root(storage)))
                saves = {shard.path: item.name for item in answered for shard in item.shards}
                if answered and question.level.reads_content:
                    here = _unnoted(tree, shared_out(located.storage, ""), root)
                    reports |= _contents(here, question, share, sealings)
                tasks = [task for save in answered for task in plan_checks(root, save, Level.STRUCTURE)]
                others = [task for task in tasks if task.path not in reports]  # these headers show the usual structure
                reports |= _by_path(reports_of(others, WaitingEngine(timeout=question.timeout)))
        reports |= _by_path(_strays(root, sorted(remaining - reports.keys()), question))
        if remaining and not by_scalars:
            _read_for_others(storage, LocalStorage(root), sorted(remaining))
        if any(sealing.written for sealing in sealings):
            _note_seals(storage)
    finally:
        take_back("noted", root)
    _forget_foreign(answers, root)
    _forget_much(answers, reports, by_scalars=by_scalars)
    remembered = found_damaged(root)  # entries about rewritten files are dropped
    damaged = tuple(
        remembered[path] for path in sorted(remembered) if answers.stamps.get(path) == remembered[path].stamp
    )
    return NodeView(answers=answers, reports=reports, saves=saves, sealings=tuple(sealings), damaged=damaged)


def _by_path(reports: Iterable[ShardReport]) -> dict[str, ShardReport]:
    return {report.path: report for report in reports}


def _walk(storage: Storage, root: str) -> set[str]:
    """Record all names, stamps and small files that any trainer reads, and return the shards.

    Links to folders are not followed: a layout with ranks or saves behind a link requests these itself.
    """
    shards, room, records = set(), MOST_OF_ALL, _records_of_any()
    for path in _files(storage, root):
        try:
            size = storage.stamp(path).size
            named = _named_format(path)
            if path.startswith(f"{TRASH}/"):  # deleted checkpoints are known by name
                continue
            if named is not None and not path.startswith(f"{OWN_FOLDER}/"):
                shards.add(path)
            is_record = named is FormatName.OCDBT or _may_be_record(path, records)
            if is_record and size <= min(MOST_OF_A_RECORD, room):
                room -= len(storage.small_file(path, limit=MOST_OF_A_RECORD))
        except OSError:
            continue
    output = open_storage(f"{storage.root}/{os.pardir}")
    for trainer in trainers():
        if trainer.health_file is not None:
            with suppress(OSError):
                output.kind(trainer.health_file.name)
                output.small_file(trainer.health_file.name, limit=MOST_OF_A_RECORD)
    return shards


def _files(storage: Storage, root: str) -> Iterator[str]:
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            entries = storage.entries(folder)
        except OSError:
            continue
        for name, kind in sorted(entries):
            path = f"{folder}/{name}" if folder else name
            if kind is Kind.FOLDER and depth < DEEPEST and (name[0] != "." or path == OWN_FOLDER):
                waiting += [] if os.path.islink(f"{root}/{path}") else [(path, depth + 1)]
            elif kind is Kind.FILE:
                yield path


def _may_be_record(path: str, records: re.Pattern[str]) -> bool:
    """Return whether ckpttool or a trainer may read a small file as a record."""
    if path.startswith(f"{OWN_FOLDER}/"):
        folders = (f"{BIRTH_FOLDER}/", f"{MARKS}/")
        return path in {JOURNAL, HEAL_JOURNAL} or is_manifest(path) or path.startswith(folders)
    return is_manifest(path) or records.fullmatch(path.rpartition("/")[2]) is not None


def _ask(noted: Located) -> tuple[Tree, tuple[Checkpoint, ...]]:
    """Run the layout's queries about a complete tree in order to record them; return the tree and its saves."""
    tree = scanned(noted, TreeQuestion(sizes=True))
    saves = tuple(map(tree.with_own_records, tree.inventory.checkpoints))
    for save in saves:
        tree.slices(save)
    return tree, saves


def _unnoted(tree: Tree, own_storage: Storage, root: str) -> Tree:
    """Return a tree that is read without being recorded, with the saved results about it."""
    inventory = replace(tree.inventory, root=root)
    remembered = with_found_damaged(inventory, own_storage, tree.seal_place, found_damaged(root), own_storage.stamp)
    return replace(tree, storage=own_storage, inventory=remembered)


def _contents(
    tree: Tree, question: CheckQuestion, share: tuple[int, int] | None, sealings: list[Sealing]
) -> dict[str, ShardReport]:
    """Check the requested saves at the requested level, and seal them if requested."""
    reports: dict[str, ShardReport] = {}
    read: dict[str, ShardReport] = {}
    saves = tree.inventory.checkpoints
    names = [name for name in _names(question) if name in {LATEST, "all"} or named(saves, name)]
    for name in names:
        for event in verify(tree, replace(question, name=name, replicas=False, digests=share is not None)):
            if not isinstance(event, Verdict):
                read[event.path] = event
                continue
            if share is not None:
                save = next(checkpoint for checkpoint in saves if checkpoint.key == event.key)
                sealings.append(_sealed(tree, tree.with_own_records(save), event, share))
            for report in event.reports:  # numbers are compared with those of the previous save
                reports[report.path] = by_itself(report, read.get(report.path, report))
    return reports


def _sealed(tree: Tree, save: Checkpoint, verdict: Verdict, share: tuple[int, int]) -> Sealing:
    """Seal this machine's files of a save; if sealing fails, the part is still written."""
    try:
        return seal_share(tree, save, verdict, share, now=time.time())
    except CkptToolError as error:
        return not_sealed(save, None, (unknown(Code.CANNOT_ANSWER, f"{save.name} was not sealed: {error}"),))


def by_itself(report: ShardReport, read: ShardReport) -> ShardReport:
    """Return a report without this machine's comparison of copies: all machines' copies are compared together."""
    bare = next((finding for finding in read.findings if finding.code is Code.CHECKSUM_MISSING), None)
    findings = report.findings
    if bare is not None:
        findings = tuple(bare if finding.code is bare.code else finding for finding in findings)
    digest = None if report.digest is None else replace(report.digest, chunks=())  # the manifest contains them
    return replace(report, copies=1, copy_matched=False, findings=findings, digest=digest)


def _note_seals(storage: Storage) -> None:
    """Add seals that were made after the names were recorded."""
    with suppress(OSError):
        for folder in ("", OWN_FOLDER):
            storage.entries(folder)
        folders = [SEALS_BESIDE]
        while folders:
            folder = folders.pop()
            for entry in storage.entries(folder):
                path = f"{folder}/{entry.name}"
                if entry.kind is Kind.FOLDER:  # the seals of a save that is a folder are in a folder of the same name
                    folders.append(path)
                    continue
                storage.stamp(path)
                storage.small_file(path, limit=MANIFEST_LIMIT)


def _names(question: CheckQuestion) -> tuple[str, ...]:
    names = question.name if isinstance(question.name, tuple) else (question.name or LATEST,)
    return names or (LATEST,)


_IN_A_STORE = re.compile(r"(?:.*/)?(?:d/[0-9a-f]{32}|manifest\.ocdbt)")
"""A file in an OCDBT store; only the records of its save contain the file's name."""


def _named_format(path: str) -> FormatName | None:
    """Return the shard format that a name suggests, or None if it is not a shard's name."""
    return FormatName.OCDBT if _IN_A_STORE.fullmatch(path) else SHARD_SUFFIXES.get(path.rpartition(".")[2])


def _strays(root: str, paths: list[str], question: CheckQuestion) -> Iterator[ShardReport]:
    """Check shards that belong to no tree here: they may be part of a tree with files on other machines.

    Only the headers are checked, unless all saves are to be read, because each shard's save is unknown.
    """
    facts = _facts_of_any()
    level = question.level if "all" in _names(question) else Level.STRUCTURE
    tasks = []
    for path in paths:
        named_format = _named_format(path)
        if named_format is not None:
            task = CheckTask(
                root=root,
                path=path,
                rank=None,
                role=ShardRole.FULL,
                named_format=named_format,
                level=level,
                cost=ByteCount(0),
                facts=facts,
            )
            tasks.append(task)
    engine: Engine = content_engine(question, None) if level.reads_content else WaitingEngine()
    return reports_of(tasks, engine)


def _forget_foreign(answers: Answers, root: str) -> None:
    """Drop each record that is a link to a place outside the tree, because it may be any file on this machine."""
    real_root = os.path.realpath(root)
    for path in [path for path in answers.files if os.path.islink(f"{root}/{path}")]:
        if not os.path.realpath(f"{root}/{path}").startswith(f"{real_root}/"):
            del answers.files[path]


def _forget_much(answers: Answers, reports: Mapping[str, ShardReport], *, by_scalars: bool) -> None:
    """Drop the bytes of shards whose report includes the complete header, and of files that were read extensively.

    Args:
        answers: The recorded answers.
        reports: The report on each shard.
        by_scalars: Whether the tree's layout needs only scalars of a header.
    """
    for path, pieces in list(answers.pieces.items()):
        report = reports.get(path)
        is_told = by_scalars and report is not None and report.format in _TOLD_BY_SCALARS
        if path in answers.files or is_told or sum(map(len, pieces.values())) > MOST_PIECES:
            del answers.pieces[path]


_TOLD_BY_SCALARS = {FormatName.SAFETENSORS, FormatName.MINDSPORE_CKPT}


def _records_of_any() -> re.Pattern[str]:
    """Return a pattern for the names of small files that any trainer reads with its shards."""
    own = (trainer.records for trainer in trainers() if trainer.records)
    return re.compile("|".join(f"(?:{pattern})" for pattern in own), re.DOTALL)


def _facts_of_any() -> ShardFacts:
    """Return the scalars of every trainer, because the trainer that wrote a stray is unknown."""
    own = (trainer.scalars for trainer in trainers() if trainer.scalars is not None)
    asked = {scalar.name: scalar for scalars in own for scalar in scalars.rules.requested}
    return ShardFacts(scalars=tuple(asked.values()))


_READ_FOR_OTHERS = {
    FormatName.SAFETENSORS,
    FormatName.MINDSPORE_CKPT,
    FormatName.TORCH_ZIP,
    FormatName.TORCH_ZIPS,
}


def _read_for_others(noted: Storage, storage: Storage, paths: Iterable[str]) -> None:
    """Read headers and plain values that records on a different machine may refer to.

    Whether those records do so is unknown on this machine.

    Args:
        noted: The storage that records its answers.
        storage: The same storage without recording.
        paths: Paths of files that look like shards.
    """
    from ckpttool.core.formats import read_header
    from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
    from ckpttool.core.formats.torch.plain import plain_values

    for path in paths:
        # Their problems are found by the check of every file.
        with suppress(OSError, BrokenPickleError):
            named = SHARD_SUFFIXES.get(path.rpartition(".")[2])
            if named not in _READ_FOR_OTHERS:
                continue
            spans = [*_value_spans(storage, path)] if named is FormatName.TORCH_ZIPS else []
            with noted.open(path) as source:
                if named is FormatName.SAFETENSORS:
                    read_header(source, named=named)
                elif named is FormatName.MINDSPORE_CKPT:  # a `.ckpt`, whose first bytes identify the writer
                    source.read(0, HEAD_BYTES)
                elif named is FormatName.TORCH_ZIP:
                    plain_values(source)
                for begin, end in spans:
                    plain_values(source, begin, end)


def _value_spans(storage: Storage, path: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file's archives with values other than tensors."""
    from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Tensor
    from ckpttool.core.formats.torch.plain import plain_values
    from ckpttool.core.formats.torch.zips import archives_of

    with storage.open(path) as source:
        small = [(begin, end) for begin, end in archives_of(source) if end - begin <= MOST_OF_A_VALUE]
        for begin, end in small[:MOST_VALUES]:
            with suppress(BrokenPickleError):
                if not isinstance(plain_values(source, begin, end), Tensor):
                    yield begin, end
