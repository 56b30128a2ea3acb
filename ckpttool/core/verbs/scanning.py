"""Find a tree and list it, with its surroundings: health, world size, config."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ckpttool.core.decide.completeness import assess, believable, no_objections
from ckpttool.core.decide.steps import settle
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, Listing
from ckpttool.core.domain.expectation import Evidence, WorldEvidence
from ckpttool.core.domain.finding import Code, Finding, Severity, in_order, note
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.health import HealthBook
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.question import AskedSizes, TreeQuestion
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.core.extensions import first_imported
from ckpttool.core.records import HEAL_JOURNAL, JOURNAL, MARKS, OWN_FOLDER, SealPlace
from ckpttool.core.storage import above, forget_listings, is_local, open_storage, path_on_machines, shortest
from ckpttool.core.storage.base import LostLinkError, Storage, is_there, unreadable
from ckpttool.core.verbs.saved_results import found_damaged, with_found_damaged, with_healed
from ckpttool.trainers.base import Layout, Refusal, ScanOptions
from ckpttool.trainers.common import jobs_of
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.locate import locate, locate_emptied
from ckpttool.trainers.located import Located, seal_place_of
from ckpttool.trainers.registry import trainer_named, trainer_of, trainers

if TYPE_CHECKING:
    from ckpttool.core.domain.node import Job, Node, Surroundings
    from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
    from ckpttool.core.domain.preflight import DiskNeed, NextSaves
    from ckpttool.core.domain.question import CheckQuestion
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.domain.shard import FileStamp
    from ckpttool.core.domain.units import ByteCount
    from ckpttool.core.records.damaged import FoundDamaged
    from ckpttool.core.storage.disk import Disk
    from ckpttool.trainers.abilities import HealthFile
    from ckpttool.trainers.base import Trainer
    from ckpttool.trainers.located import DiskKey, Machines


Where: TypeAlias = "TreeQuestion | str | os.PathLike[str] | None"
"""The tree, by known facts or only by its path; None for the tree in or around the current folder."""


def tree_question(where: Where, *, sizes: bool = False) -> TreeQuestion:
    """Return the question about a tree. For a bare path, `sizes` decides whether shard sizes are collected."""
    if isinstance(where, TreeQuestion):
        return where
    return TreeQuestion(path=None if where is None else os.fspath(where), sizes=sizes)


def tree_of(tree: Tree | Where) -> Tree:
    """Return the tree, and scan it with sizes if it has not been scanned yet."""
    return tree if isinstance(tree, Tree) else scan(tree_question(tree, sizes=True))


class ThisMachine:
    """A tree that this machine reads itself, without records of other machines."""

    is_here = True

    def folder(self, root: str) -> str:
        """Return the absolute path of the tree's folder."""
        return os.path.abspath(root)

    def engines(self, question: CheckQuestion) -> None:
        """Return None, because the shards can be opened here."""

    def without_half_gone(
        self, located: Located, inventory: Inventory, options: ScanOptions
    ) -> tuple[Located, Inventory]:
        """Return the tree unchanged, because a single disk has no partial deletion."""
        del options
        return located, inventory

    def found_damaged(self, storage: Storage) -> tuple[Mapping[str, FoundDamaged], Callable[[str], FileStamp]]:
        """Return the damage recorded in this user's cache."""
        return found_damaged(storage.root), storage.stamp

    def assessed(self, inventory: Inventory, question: TreeQuestion) -> Inventory:
        """Return the inventory unchanged, because a single machine cannot contradict itself."""
        del question
        return inventory

    def placed(
        self,
        decision: ResumePlan | NoResumePoint,
        layout: Layout,
        inventory: Inventory,
        question: TreeQuestion,
        node: Node | None,
    ) -> ResumePlan | NoResumePoint:
        """Add the files that other machines may have, if a launcher or the names in the tree suggest any."""
        from ckpttool.core.domain.plan import ResumePlan

        jobs = jobs_of(os.environ if node is None else node.environment)
        if not jobs and isinstance(decision, ResumePlan):
            return decision  # there is no evidence of other machines
        from ckpttool.core.decide.one_node import judge_one_node

        return judge_one_node(decision, inventory, surroundings(inventory, layout, question, jobs, node))

    def disk_needs(
        self, coming: NextSaves, storage: Storage, paths: tuple[str, ...], disk: Disk
    ) -> tuple[DiskNeed, ...] | Finding:
        """Compare the size of the next saves with the free space at their destination, or report why it is unknown."""
        from ckpttool.core.decide.preflight import disk_unknown
        from ckpttool.core.domain.preflight import DiskNeed

        folder = disk.nearest(coming.folder)
        folders = (folder, *coming.inside) if folder == storage.root else (folder,)
        try:
            size = sum(storage.stamp(path).size for path in paths)
            room = disk.room(folder)
        except OSError as error:
            return disk_unknown(folder, error.strerror or str(error))
        need = DiskNeed(
            folder=folder,
            saves=coming.count,
            save_bytes=size,
            save_files=len(paths),
            free_bytes=room.free_bytes,
            free_files=room.free_files,
            unwritable=tuple(folder for folder in folders if not disk.is_writable(folder)),
            stays=coming.stays,
        )
        return (need,)

    def sizes(self, path: str, size: ByteCount) -> Mapping[DiskKey, ByteCount]:
        """Return the size of the only copy."""
        del path
        return {(): size}

    def hosts(self) -> Mapping[DiskKey, str]:
        """Return no names, because a single machine needs none."""
        return {}


HERE = ThisMachine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(Listing):
    """A scanned tree, and its location."""

    now: float = 0.0
    layout: Layout
    """The layout of this tree."""
    storage: Storage
    focus: str | None
    """Checkpoint name, if the path was a shard or the folder of one save."""
    resolved_from: str | None
    """The path used instead of the requested path, for display."""
    book: HealthBook
    """The health file as read; its records are attached to the checkpoints."""
    machines: Machines = HERE
    """The machines of the tree: other machines, if only their records are known."""

    @property
    def trainer(self) -> Trainer | None:
        """The trainer of these checkpoints; None for a single file."""
        return trainer_of(self.layout)

    @property
    def is_in_folder(self) -> bool:
        """Whether the tree is in a folder, on this machine or on others, and not in an object store."""
        return is_local(self.inventory.root)

    @property
    def is_on_own_disk(self) -> bool:
        """Whether the tree is in a folder of this machine, whose disk can be measured."""
        return self.machines.is_here and is_local(self.storage.root)

    def from_the_top(self, path: str) -> str:
        """Return a path in this tree as an absolute path, on the machines that have the tree.

        Raises:
            UsageError: The machines have the tree at different paths, or do not report the path.
        """
        root = self.inventory.root
        return os.path.normpath(os.path.join(self.machines.folder(root), os.path.relpath(path, root)))

    def with_own_records(self, checkpoint: Checkpoint) -> Checkpoint:
        """Add a checkpoint's own records, which the scan does not read; an unreadable record affects only this save."""
        try:
            return self.layout.with_own_records(self.storage, checkpoint)
        except OSError as error:
            named = error.filename if isinstance(error.filename, str) else ""
            path = named.removeprefix(self.storage.root).lstrip("/") or checkpoint.name
            withheld = unreadable(path, error)
            return replace(checkpoint, findings=(*checkpoint.findings, withheld))

    def slices(self, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Return the slices of each rank according to the training run's records, or None if they cannot be read."""
        try:
            return self.layout.slices(self.storage, checkpoint)
        except OSError:
            return None

    def has_peers(self, checkpoint: Checkpoint) -> bool:
        """Return whether ranks' files may be copies of each other, in a folder."""
        return self.is_in_folder and _has_peers(self.layout, checkpoint)

    def with_remedies(self, findings: tuple[Finding, ...], checkpoint: Checkpoint) -> tuple[Finding, ...]:
        """Add the search for a proven copy to the remedies of missing and damaged shards that may have copies."""
        if not _have_damage(findings):
            return findings
        from ckpttool.core.decide.peer_remedies import with_peer_remedies  # most checkpoints have no damage

        return with_peer_remedies(findings, checkpoint, self.inventory.root, self.has_peers)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | None:
        """Return the location of a checkpoint's seal, or None if its layout does not support seals."""
        return seal_place_of(self.layout, checkpoint)


def scan(question: Where = None) -> Tree:
    """List the checkpoints of a tree: steps, ranks, expected number of ranks, sizes and recorded health.

    Raises:
        UnknownLayoutError: There is no tree at the path.
        UsageError: There are two trees, or the config belongs to a different trainer.
        IncompleteError: The tree's folder cannot be read.
    """
    question = tree_question(question, sizes=True)
    return scanned(_located(question), question)


def _located(question: TreeQuestion) -> Located:
    if question.path is not None:
        forget_listings(question.path)
    return locate(question.path, layout=question.layout, config=question.config, root=question.root)


def scan_emptied(question: TreeQuestion) -> Tree | None:
    """Return the tree at a path if all its checkpoints are in the trash; otherwise None.

    Raises:
        UsageError: The trash has several layouts, and no layout is selected.
        IncompleteError: The trash cannot be read.
    """
    located = locate_emptied(question.path, layout=question.layout)
    return None if located is None else scanned(located, question)


def trees_below(root: str, *, layout: str | None = None) -> list[str]:
    """List the folders in and below a folder, sorted, that look like trees or cannot be listed.

    No link is followed and no checkpoint is opened. `scan` shows whether such a tree contains a checkpoint.

    Args:
        root: The start folder.
        layout: Look only for this layout.

    Raises:
        IncompleteError: There are too many folders to list.
    """
    from ckpttool.trainers.below import trees_below

    return [nested.path for nested in trees_below(shortest(root), layout=layout)]


def scans_without(question: TreeQuestion) -> Callable[[Collection[str]], Inventory]:
    """Return a function that lists the tree as if some files or folders were deleted; paths are relative to its root.

    Raises:
        UnknownLayoutError: There is no tree at the path.
        UsageError: There are two trees, or the config belongs to a different trainer.
        IncompleteError: The tree's folder cannot be read.
    """
    from ckpttool.core.storage.hidden import HiddenStorage

    located = _located(question)
    storage = HiddenStorage(located.storage)

    def scan_without(hidden: Collection[str]) -> Inventory:
        storage.hidden = frozenset(hidden)
        return scanned(replace(located, storage=storage, listing=list_root(storage)), question).inventory

    return scan_without


def scanned(located: Located, question: TreeQuestion) -> Tree:
    """Scan a tree whose location is known."""
    config = question.config
    per_epoch = question.steps_per_epoch or (config.sink_size if config else None)
    options = ScanOptions(sizes=question.sizes, steps_per_epoch=per_epoch)
    layout, machines = located.layout, located.machines or HERE
    _assert_own(config, trainer_of(layout), located.storage.root)
    with looking_at(located.storage.root):
        inventory = layout.scan(located.storage, located.listing, options)
        located, inventory = machines.without_half_gone(located, inventory, options)
        inventory = settle(inventory)
        expected = layout.expected(inventory, _evidence(layout, question, inventory, located.storage))
        book = _health_book(question, layout, located.storage.root)
    has_own_folder = bool(located.listing.beginning(OWN_FOLDER))
    assessed = assess(
        inventory,
        expected,
        book,
        recorded_names(layout, inventory),
        world_size=question.world_size,
        objections=_objections(layout, question.requested),
        under_way=interrupted(located.storage) if has_own_folder else (),
    )
    seal_place = partial(seal_place_of, layout)
    if has_own_folder:
        assessed = with_healed(assessed, located.storage, seal_place)
        assessed = _with_marks(assessed, located.storage)
    assessed = with_found_damaged(assessed, located.storage, seal_place, *machines.found_damaged(located.storage))
    assessed = machines.assessed(assessed, question)
    if is_local(assessed.root) and any(_have_damage(checkpoint.findings) for checkpoint in assessed.checkpoints):
        from ckpttool.core.decide.peer_remedies import with_peer_remedies_in

        assessed = with_peer_remedies_in(assessed, partial(_has_peers, layout))
    return Tree(
        inventory=assessed,
        layout=layout,
        storage=located.storage,
        focus=located.focus,
        resolved_from=located.resolved_from,
        book=replace(book, path=path_on_machines(book.path, located.storage.root, assessed.root)),
        machines=machines,
    )


class ReadsMarks(Protocol):
    """A function that reads the marks of people and supervisors on saves."""

    def __call__(self, inventory: Inventory, storage: Storage) -> Inventory:
        """Return the inventory with the health and the findings that follow from the marks."""
        ...


def _with_marks(inventory: Inventory, storage: Storage) -> Inventory:
    if not is_there(storage, MARKS):
        return inventory
    read: ReadsMarks | None = first_imported(lambda feature: feature.marks)
    return inventory if read is None else read(inventory, storage)


def _have_damage(findings: Sequence[Finding]) -> bool:
    return any(finding.severity is Severity.DAMAGE for finding in findings)


def _has_peers(layout: Layout, checkpoint: Checkpoint) -> bool:
    shards = checkpoint.shards
    return bool(shards) and not isinstance(layout.peer_path(checkpoint, Rank(0), shards[0].role), Refusal)


def interrupted(storage: Storage) -> tuple[Finding, ...]:
    """Report that a prune was interrupted or is running, so that missing files are not damage."""
    if is_there(storage, HEAL_JOURNAL):
        message = "a heal was interrupted here or is running: the next ckpttool repair shards --apply completes it"
        return (
            note(
                Code.IN_PROGRESS,
                message,
                path=HEAL_JOURNAL,
                remedy="run ckpttool repair shards --apply, or any other change with --apply",
            ),
        )
    if not is_there(storage, JOURNAL):
        return ()
    message = (
        "a prune or a restore from the trash was interrupted here or is running: the checkpoints that it was "
        "moving look incomplete until the next ckpttool prune --apply or trash restore"
    )
    remedy = "run one of these: it first moves all files back"
    return (note(Code.IN_PROGRESS, message, path=JOURNAL, remedy=remedy),)


@contextmanager
def looking_at(root: str) -> Iterator[None]:
    """Turn the error of a file that a layout or a trainer cannot read into one that names the file.

    Most layouts and trainers report a finding and handle the other files; this function covers the remaining errors.

    Raises:
        IncompleteError: A file could not be read.
    """
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else ""
        path = named if named.startswith(root) else os.path.join(root, named).rstrip("/")
        raise IncompleteError(f"{path} cannot be read: {error.strerror or error}") from None


def surroundings(
    inventory: Inventory, layout: Layout, question: TreeQuestion, jobs: tuple[Job, ...], node: Node | None = None
) -> Surroundings:
    """Collect the evidence on whether other machines may have files of a tree.

    Args:
        inventory: The inventory of the tree on this machine.
        layout: The layout of the tree.
        question: The question about the tree; the user or the config may give the number of ranks.
        jobs: The launchers' jobs.
        node: The source of facts about this disk; None for this machine.
    """
    from ckpttool.core.domain.node import Surroundings
    from ckpttool.core.storage.mounts import mount_of, mount_table

    config = question.config
    shards = [shard.path for checkpoint in inventory.checkpoints[:1] for shard in checkpoint.shards[:1]]
    declared = (question.world_size, None if config is None else config.world_size)
    mounts = mount_table() if node is None else node.mounts
    return Surroundings(
        files=layout.rank_files,
        sign=layout.signs.sign,
        declared=tuple(world for world in declared if world is not None),
        jobs=jobs,
        mount=mount_of(os.path.join(inventory.root, *shards), mounts),
    )


def with_note_of_others(tree: Tree, question: TreeQuestion) -> Tree:
    """Add a note that other machines may have more files of the newest checkpoint than this machine."""
    jobs = jobs_of(os.environ)
    if not jobs or not tree.inventory.checkpoints or not tree.machines.is_here:
        return tree  # there is no evidence of other machines
    from ckpttool.core.decide.one_node import intact_here_alone

    around = surroundings(tree.inventory, tree.layout, question, jobs)
    notes = intact_here_alone(newest_first(tree.inventory.checkpoints)[0], around)
    if notes is None:
        return tree
    note = replace(notes, severity=Severity.NOTE)
    return replace(tree, inventory=replace(tree.inventory, findings=in_order((*tree.inventory.findings, note))))


def _assert_own(config: RunConfig | None, trainer: Trainer | None, root: str) -> None:
    if config is None or trainer is None or config.trainer == trainer.name:
        return
    if trainer.configs is None:
        raise UsageError(f"{root} contains checkpoints of {trainer.title}, whose configs ckpttool does not read")
    title = trainer_named(config.trainer).title
    raise UsageError(f"{config.path} is a config for {title}, but {root} contains checkpoints of {trainer.title}")


def read_config(path: str) -> RunConfig:
    """Read the settings of a training config about resuming, parallelism and data.

    Raises:
        UsageError: The config cannot be read, or is not safe YAML.
    """
    from ckpttool.core.formats.safe_yaml import read_bytes
    from ckpttool.core.verbs.configs import parse_config

    return parse_config(read_bytes(path), path=path)


def _objections(layout: Layout, requested: AskedSizes) -> Callable[[Checkpoint], Sequence[Finding]]:
    """Return a function that reports the trainer's objections to loading a save at other sizes."""
    trainer = trainer_of(layout)
    if trainer is None or requested == AskedSizes():
        return no_objections
    return partial(trainer.objections, requested=requested)


def _evidence(layout: Layout, question: TreeQuestion, inventory: Inventory, storage: Storage) -> Evidence:
    """Collect external evidence about a tree: from the user, the trainer's config and files, and a seal."""
    worlds = []
    if question.world_size is not None:
        worlds.append(WorldEvidence(world_size=question.world_size, source="--world-size says so", declared=True))
    trainer = trainer_of(layout)
    output = open_storage(os.path.join(storage.root, os.pardir))
    reported = Evidence() if trainer is None else trainer.evidence(output, question.config)
    sealed = _sealed_world(layout, inventory, storage)
    return believable(Evidence(worlds=(*worlds, *reported.worlds, *sealed), weights_alone=reported.weights_alone))


def _sealed_world(layout: Layout, inventory: Inventory, storage: Storage) -> list[WorldEvidence]:
    """Read the newest checkpoint's separate seal, which records ranks whose folder was deleted."""
    if not inventory.checkpoints or not is_there(storage, OWN_FOLDER):
        return []
    newest = newest_first(inventory.checkpoints)[0]
    place = seal_place_of(layout, newest)
    if place is None or not place.is_apart:
        return []
    from ckpttool.core.records.birth import recorded_world

    world = recorded_world(storage, place, newest.shards)
    if world is None:
        return []
    return [WorldEvidence(world_size=world, source=f"the seal of {newest.name} says so", declared=False)]


def recorded_names(layout: Layout, inventory: Inventory) -> tuple[str | None, ...]:
    """Return each checkpoint's name in the trainer's health file, or None if the file does not list the checkpoint."""
    names = map(layout.recorded_name, inventory.checkpoints)
    return tuple(None if isinstance(name, Refusal) else name for name in names)


def health_file_of(layout: Layout) -> HealthFile | None:
    """Return the health file for such saves; for a file without a tree, the first health file."""
    owner = trainer_of(layout)
    if owner is not None:
        return owner.health_file
    return next((trainer.health_file for trainer in trainers() if trainer.health_file is not None), None)


def _health_book(question: TreeQuestion, layout: Layout, root: str) -> HealthBook:
    """Read the health file that the user named, or otherwise the file in the tree or in the output folder above it."""
    file = health_file_of(layout)
    if question.health_file is not None:
        return _named_health_book(question.health_file, file)
    if file is None:
        return HealthBook(path=None, records=())
    for folder in _health_folders(root):
        book = file.read(open_storage(folder), file.name)
        if book.path is not None:
            return replace(book, path=os.path.join(folder, file.name))
    return HealthBook(path=None, records=())


def _health_folders(root: str) -> tuple[str, str]:
    return root, above(root)


def health_file_near(root: str, name: str) -> str | None:
    """Return the health file that `scan` reads for the checkpoints in a folder, or None if there is no health file.

    Raises:
        IncompleteError: It is unknown whether the file exists, so that writing might create a second one.
    """
    for folder in _health_folders(root):
        place = os.path.join(folder, name)
        try:
            open_storage(folder).kind(name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except LostLinkError:
            return place
        except OSError as error:
            problem = f"{place}: whether it exists is unknown ({error.strerror or error})"
            raise IncompleteError(f"{problem}; give the file with --health-file") from None
        return place
    return None


def _named_health_book(path: str, file: HealthFile | None) -> HealthBook:
    if file is None:
        raise UsageError(f"--health-file {path!r}: the trainer of this tree has no health file that ckpttool knows")
    folder, name = os.path.split(path)
    book = file.read(open_storage(folder or "."), name)
    if book.path is None:
        raise IncompleteError(f"{path} does not exist")
    return replace(book, path=path, findings=tuple(replace(finding, path=path) for finding in book.findings))
