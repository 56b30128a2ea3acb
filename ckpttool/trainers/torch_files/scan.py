"""List the saves among a folder's torch files: their contents decide, and a name alone never determines a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.core.decide.steps import read_name
from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    NamedStep,
    StepSource,
    Topology,
)
from ckpttool.core.domain.finding import Code, Finding, in_order, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FileStamp, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import STEP_DIGITS, Step, counted
from ckpttool.core.formats.base import ZIP_MAGIC
from ckpttool.core.formats.front import HEAD_BYTES
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import is_saved, plain_values
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage import is_local
from ckpttool.core.storage.base import Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.common.listed import one_run, stray
from ckpttool.trainers.common.saved_values import other_step
from ckpttool.trainers.common.torch_files import cut, identity
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_files import SUFFIXES, TRAINER, may_be_save
from ckpttool.trainers.torch_files.parts import with_parts
from ckpttool.trainers.torch_files.record import Record, record_of
from ckpttool.trainers.torch_files.resumes import LAST, last_named

MOST_READ = 64
"""Maximum number of files whose pickle a scan reads, of those with a number and of those without.

The pickle of a model with 500 tensors takes a tenth of a second.
"""
_MOST_TIES = 8
"""Maximum number of steps with several saves, for which the directories of their archives are compared."""
_NUMBERED = rf"(?s:(?P<before>.*?)(?P<number>[0-9]{{1,{STEP_DIGITS}}})(?P<after>[^0-9]*))"
_REMEDY = "save the global step in it: an integer called step, global_step, iter or iteration"
_OTHER_FILE = "restore it from a copy, or resume from another checkpoint"
_BY_HAND = "if its epoch is enough, load it in your script"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFile:
    """A file that is a save, or may be one."""

    name: str
    record: Record | None
    """The facts in it; None if they cannot be read, or were not read."""
    format: FormatName = FormatName.TORCH_ZIP
    stamp: FileStamp | None = None
    aliases: tuple[str, ...] = ()
    """Links to the same file."""
    findings: tuple[Finding, ...] = ()
    is_unread: bool = False

    @property
    def is_save(self) -> bool:
        """Whether the file is a save, as far as it could be read; any other file counts only if named as the saves."""
        return self.record is None or self.record.is_save

    @property
    def step(self) -> int | None:
        """The step in the file."""
        return None if self.record is None else self.record.step


def scan_saves(storage: Storage, listing: Listing) -> Inventory:
    """List the saves, with the counters in each.

    Args:
        storage: The tree.
        listing: The names in its root.
    """
    candidates = [
        entry for entry in listing.entries if entry.kind in {Kind.FILE, Kind.LOST} and may_be_save(entry.name)
    ]
    names = set(listing.newest_files(may_be_save, most=MOST_READ))
    names |= {entry.name for entry in candidates if entry.kind is Kind.LOST}
    files = list(map_waiting(lambda name: _file(storage, name), sorted(names)))
    stems = _step_stems(files)
    saves = [file for file in files if file.is_save or _stem(file.name)[0] in stems]
    unread = [entry.name for entry in candidates if entry.name not in names]
    by_name = [SaveFile(name=name, record=None, is_unread=True) for name in unread if _stem(name)[0] in stems]
    groups = [*_without_links(saves, is_one_disk=is_local(storage.root)), *by_name]
    within_epochs = _restarts(file.record for file in groups if file.record is not None)
    remedy = _remedy(groups)
    last = last_named(storage) if listing.has(LAST) else None
    checkpoints = [_checkpoint(file, stems, last, within_epochs=within_epochs, remedy=remedy) for file in groups]
    checkpoints = with_parts(storage, checkpoints, _stem)
    checkpoints.sort(key=lambda save: (save.step is not None, save.step or 0, save.sort_key, save.name))
    known = {OWN_FOLDER, LAST, *(name for file in groups for name in (file.name, *file.aliases))}
    strays = tuple(entry.name for entry in listing.entries if entry.name not in known)
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *_ties(storage, checkpoints), *_not_read(unread, by_name))),
        strays=strays,
    )


def confirmed(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Return a save that was listed by name, with the contents of its pickle, and a finding if these differ."""
    file = _file(storage, checkpoint.name)
    record, findings = file.record or Record(), file.findings
    if record.step is None and not findings:
        message = "its contents do not confirm the step in its name"
        findings = (unknown(Code.STEP_UNKNOWN, message, path=checkpoint.name, remedy=_REMEDY),)
    elif record.step not in {None, checkpoint.step}:
        findings = (*findings, other_step(checkpoint.name, record.step or 0))
    elif not findings and not record.is_full:
        message = "contains no optimizer state: a run that resumes from it re-initializes its optimizer"
        findings = (suspect(Code.WEIGHTS_ONLY, message, path=checkpoint.name),)
    return replace(checkpoint, content=record.content, findings=(*checkpoint.findings, *findings))


def _file(storage: Storage, name: str) -> SaveFile:
    """Read a file; its record is empty if it is not a torch file, or has no tensors."""
    try:
        with storage.open(name) as source:
            head, stamp = source.read(0, HEAD_BYTES), source.stamp
            if not head.strip(b"\0"):  # empty, or zeros: the traces of a power failure
                return SaveFile(name=name, record=None, stamp=stamp)
            if not is_saved(head):  # such as the text that Git LFS leaves in the place of a file
                return SaveFile(name=name, record=Record(), stamp=stamp)
            form = FormatName.TORCH_ZIP if head.startswith(ZIP_MAGIC) else FormatName.TORCH_PICKLE
            record, findings = None, cut(source, name)
            try:
                record = record_of(plain_values(source))
            except BrokenPickleError:
                if form is FormatName.TORCH_ZIP and not findings and b"/data.pkl" not in head:
                    record = Record()  # a zip archive of another kind
    except OSError as error:
        return SaveFile(name=name, record=None, findings=(unreadable(name, error),))
    return SaveFile(name=name, record=record, format=form, stamp=stamp, findings=findings)


def _base(name: str) -> str:
    """Return a name without its suffixes, such as `.pth.tar`."""
    base = name
    while base.endswith(SUFFIXES):
        base = base.rpartition(".")[0]
    return base


def _stem(name: str) -> tuple[str | None, Step]:
    """Return the text around the last number in a name, and the number; None if it has no number."""
    match = re.fullmatch(_NUMBERED, _base(name))
    return (None, Step(0)) if match is None else (f"{match['before']}#{match['after']}", Step(int(match["number"])))


def _step_stems(files: Iterable[SaveFile]) -> frozenset[str | None]:
    """Return the stems whose numbers are steps according to the contents of at least one file."""
    return frozenset(stem for file in files for stem, number in (_stem(file.name),) if stem and file.step == number)


def _without_links(files: Sequence[SaveFile], *, is_one_disk: bool) -> Iterator[SaveFile]:
    """Yield the files, those with links to the same file only once.

    A copy is not a link: each copy is checked itself.
    """
    groups: dict[object, list[SaveFile]] = defaultdict(list)
    for file in files:
        groups[file.stamp if is_one_disk and file.stamp is not None else file.name].append(file)
    for group in groups.values():
        group.sort(key=lambda file: (_stem(file.name)[1] != file.step, _stem(file.name)[0] is None, file.name))
        main, *links = group
        yield replace(main, aliases=tuple(sorted(file.name for file in links)))


def _restarts(records: Iterable[Record]) -> bool:
    """Return whether the counter restarts in each epoch, so that it does not count global steps."""
    places = sorted({(record.epoch, record.step) for record in records if record.epoch is not None and record.step})
    steps = [step or 0 for _, step in places]
    epochs = {epoch for epoch, _ in places}
    if len(epochs) > 1 and len(set(steps)) == 1:
        return True
    return steps != sorted(steps)


def _remedy(files: Iterable[SaveFile]) -> str:
    """Return the remedy for an unknown step; it names the save of the highest epoch if all saves have one."""
    records = [(file.record, file.name) for file in files if not file.is_unread and file.record is not None]
    full = [(record.epoch, name) for record, name in records if record.is_full]
    epochs = [(epoch, name) for epoch, name in full if epoch is not None]
    if not epochs or len(epochs) != len(full):
        return _REMEDY
    highest = max(epoch for epoch, _ in epochs)
    names = sorted(name for epoch, name in epochs if epoch == highest)
    return f"{_REMEDY}; the highest epoch inside is {highest}, in {' and '.join(names[:2])}: {_BY_HAND}"


def _named(file: SaveFile, stems: frozenset[str | None]) -> NamedStep:
    """Return the step in a name: only if the contents of the tree's saves show that such names contain steps."""
    stem, number = _stem(file.name)
    if stem is not None and stem in stems:
        return NamedStep(stem=stem, number=number, is_free=True)
    without = NamedStep(stem=file.name, number=None, is_free=True)
    if file.step is None or file.record is None:
        return without
    epoch = file.record.epoch
    is_epoch = epoch is not None and abs(number - epoch) <= 1
    return without if is_epoch else replace(read_name(_base(file.name)), stem=stem or file.name)


def _checkpoint(
    file: SaveFile, stems: frozenset[str | None], last: str | None, *, within_epochs: bool, remedy: str
) -> Checkpoint:
    record = file.record or Record()
    step = None if within_epochs or record.step is None else Step(record.step)
    trouble = record.step_trouble
    if within_epochs and record.step is not None:
        trouble = (
            "its counter does not grow with its epoch: it restarts in each epoch, or two training runs share the folder"
        )
    findings = file.findings
    if file.record is not None and not record.has_tensors:
        message = "is named as the other saves, but torch.save wrote no tensor into it"
        findings = (*findings, unknown(Code.METADATA_INCOMPLETE, message, path=file.name, remedy=_OTHER_FILE))
    if record.may_have_optimizer and not record.has_optimizer:
        message = "its optimizer has neither parameter groups nor tensors: it is unknown whether it is a full save"
        findings = (*findings, unknown(Code.METADATA_INCOMPLETE, message, path=file.name))
    named = _named(file, stems)
    if within_epochs:
        named = NamedStep(stem=file.name, number=None, is_free=True)
    shard = Shard(path=file.name, rank=None, role=ShardRole.FULL, format=file.format, stamp=file.stamp)
    return Checkpoint(
        name=file.name,
        aliases=file.aliases,
        sort_key=(-1 if record.epoch is None else record.epoch, int(named.number == step)),
        facts=(("epoch", record.epoch),),
        scalars=Scalars(step=step),
        step=step,
        step_source=StepSource.UNKNOWN if step is None else StepSource.CONTENT,
        named=named,
        step_remedy=remedy if trouble is None else f"{trouble}: {remedy}",
        shards=(shard,),
        topology=Topology(shared=True),
        format=file.format,
        expected=(file.name,),
        commit=CommitState.UNRECORDED,
        content=Content.UNKNOWN if file.record is None else record.content,
        is_tracked=last is not None and last in {file.name, *file.aliases},
        findings=findings,
    )


def _ties(storage: Storage, checkpoints: Iterable[Checkpoint]) -> Iterator[Finding]:
    """Report saves of one step that are not proven copies of each other: they may be of two training runs."""
    by_step: dict[Step, list[str]] = defaultdict(list)
    for save in checkpoints:
        if save.step is not None and save.content is Content.FULL:
            by_step[save.step].append(save.name)
    tied = [(step, sorted(names)) for step, names in by_step.items() if len(names) > 1]
    for step, names in tied[:_MOST_TIES]:
        if len({identity(storage, name) for name in names}) > 1:
            fact = f"{' and '.join(names)} contain step {step}, but differ"
            message = f"{fact}: they may be parts of one save, or of different training runs"
            yield note(Code.RUN_MIXED, message, path=names[-1], remedy="ckpttool diff shows the differences")


def _not_read(unread: Sequence[str], by_name: Sequence[SaveFile]) -> Iterator[Finding]:
    """Report the files whose contents were not read."""
    if not unread:
        return
    lacking = f", and {counted(len(unread) - len(by_name), 'file')} not at all" if len(by_name) < len(unread) else ""
    message = f"{counted(len(by_name), 'file')} with lower numbers are listed by name only{lacking}"
    yield note(Code.STEP_UNKNOWN, message, path=unread[-1], remedy="prune deletes none of them; move old saves away")
