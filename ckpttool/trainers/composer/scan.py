"""List the saves of a folder: files, folders of slices, and the link to the last of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.decide.steps import NAME_REMEDY
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, in_order, note, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FileStamp, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.base import ZIP_MAGIC
from ckpttool.core.storage.base import Entry, Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import one_run, stamp_if_there, stray
from ckpttool.trainers.common.torch_files import cut, identity
from ckpttool.trainers.composer import FILE, FOLDER, REMOTE_LATEST, TRAINER, is_latest, may_be_folder
from ckpttool.trainers.composer.record import Record, named, read_file, save_record
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_dcp import METADATA, is_store

if TYPE_CHECKING:
    from ckpttool.core.storage.base import ByteSource

_SUFFIX = ".pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file that may be a save."""

    name: str
    record: Record = Record()
    stamp: FileStamp | None = None
    """None if the file cannot be read."""
    is_archive: bool = True
    """Whether the file begins as `torch.save` begins one; True if it cannot be read."""
    findings: tuple[Finding, ...] = ()


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with their records.

    The link to the last save is another name of that save.

    Args:
        storage: The tree.
        listing: The names in its root.
        options: Data to collect in addition to the names.
    """
    from ckpttool.trainers.torch_dcp.saves import SaveTree

    inventory = SaveTree(layout=TRAINER.name, reading=save_record, is_save=_folders).scan(storage, listing, options)
    entries = [entry for entry in listing.entries if _may_be_file(entry)]
    files = [file for file in map_waiting(lambda entry: _look_at(storage, entry), entries) if _is_save(file)]
    several = _of_several_ranks(file.name for file in files)
    saves = [*inventory.checkpoints, *(_checkpoint(file, several) for file in files)]
    checkpoints = sorted(_with_links(storage, saves), key=_age)
    names = {file.name for file in files}
    strays = tuple(name for name in inventory.strays if name not in names and not _is_record(name))
    withheld = (finding for finding in inventory.findings if finding.code is not Code.STRAY_FILE)
    traps = _traps(storage, listing, checkpoints)
    return replace(
        inventory,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*withheld, *map(stray, strays), *traps, *_of_another_run(checkpoints))),
        strays=strays,
    )


def _folders(listing: Listing) -> Iterator[str]:
    """Yield the folders of slices with a name that Composer may give, and empty folders that a save created.

    A folder that cannot be listed may be a save.
    """
    for entry in listing.entries:
        if entry.kind is not Kind.FOLDER or not may_be_folder(entry.name):
            continue
        try:
            names = listing.names_in(entry.name)
        except OSError:
            yield entry.name
            continue
        if is_store(names) or (not names and re.fullmatch(FOLDER, entry.name)):
            yield entry.name


def _may_be_file(entry: Entry) -> bool:
    is_file = entry.kind is Kind.FILE or (entry.kind is Kind.LOST and not is_latest(entry.name))
    return is_file and (entry.name.endswith(_SUFFIX) or is_latest(entry.name))


def _look_at(storage: Storage, entry: Entry) -> _File:
    try:
        with storage.open(entry.name) as source:
            return _read(source, entry.name)
    except OSError as error:
        return _File(name=entry.name, findings=(unreadable(entry.name, error),))


def _read(source: ByteSource, name: str) -> _File:
    is_archive = source.read(0, len(ZIP_MAGIC)) == ZIP_MAGIC
    return _File(
        name=name,
        record=read_file(source),
        stamp=source.stamp,
        is_archive=is_archive,
        findings=cut(source, name),
    )


def _is_save(file: _File) -> bool:
    """Return whether a file is a save: by its name, or by the counters in it.

    Some tools write a text in the place of the link.
    """
    if is_latest(file.name):
        return file.is_archive
    return re.fullmatch(FILE, file.name) is not None or file.record.step is not None


def _is_record(name: str) -> bool:
    """Return whether a name is a record of the last save: a broken link, or a text in its place."""
    return is_latest(name) or re.fullmatch(REMOTE_LATEST, name) is not None


def _of_several_ranks(names: Iterable[str]) -> frozenset[str]:
    """Return the starts of the names of saves of which a rank other than the first has a file."""
    found = (re.fullmatch(FILE, name) for name in names)
    return frozenset(match[0].partition("-rank")[0] for match in found if match is not None and int(match["rank"] or 0))


def _several_ranks(name: str) -> Finding:
    return unknown(
        Code.UNSUPPORTED_FORMAT,
        "ranks other than the first have files of this save, as early versions of Composer wrote them: they are not "
        "checked",
        path=name,
        remedy="resume from a save that is one file or one folder",
    )


def _not_a_save(name: str) -> Finding:
    message = "lacks the model or the counters of a save by Composer: its name alone does not make it one"
    return unknown(Code.METADATA_INCOMPLETE, message, path=name, remedy="resume from another checkpoint")


def _checkpoint(file: _File, several: frozenset[str]) -> Checkpoint:
    record, in_name = file.record, named(file.name)
    number = None if in_name is None else in_name.number
    step = number if record.step is None else Step(record.step)
    source = StepSource.NAME if record.step is None else StepSource.CONTENT
    findings = file.findings
    if file.is_archive and record.content is Content.UNKNOWN and not findings:
        findings = (_not_a_save(file.name),)
    if file.name.partition("-rank")[0] in several:
        findings = (*findings, _several_ranks(file.name))
    shard = Shard(path=file.name, rank=None, role=ShardRole.FULL, format=FormatName.TORCH_ZIP, stamp=file.stamp)
    return Checkpoint(
        name=file.name,
        facts=record.facts,
        scalars=record.scalars,
        step=step,
        step_source=StepSource.UNKNOWN if step is None else source,
        named=in_name,
        step_remedy=NAME_REMEDY,
        shards=(shard,),
        topology=Topology(shared=True),
        format=FormatName.TORCH_ZIP,
        expected=(file.name,),
        commit=CommitState.UNRECORDED,  # a file is written under its final name
        content=record.content,
        findings=findings,
    )


def _with_links(storage: Storage, saves: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Add each link to the last save as a name of that save; a link without such a save remains a save itself.

    A copy in the place of the link has the same counters and checksums; if it is intact and the save itself is not, it
    replaces the save.
    """
    lasts = [save for save in saves if is_latest(save.name)]
    others = [save for save in saves if not is_latest(save.name)]
    for last in lasts:
        at = next((index for index, save in enumerate(others) if _is_same(storage, save, last)), None)
        if at is None:
            others.append(last)
        elif not last.findings and any(each.code is not Code.UNSUPPORTED_FORMAT for each in others[at].findings):
            others[at] = replace(last, aliases=(*last.aliases, others[at].name))
        else:
            others[at] = replace(others[at], aliases=tuple(sorted((*others[at].aliases, last.name))))
    return others


def _is_same(storage: Storage, save: Checkpoint, last: Checkpoint) -> bool:
    """Return whether a link leads to a save, or a copy in the place of the link has its content."""
    if _is_folder(save) != _is_folder(last):
        return False
    stamps = [_stamp(storage, each) for each in (save, last)]
    if stamps[0] is not None and stamps[0] == stamps[1]:
        return True
    if last.step is None or (save.scalars, save.facts, save.content) != (last.scalars, last.facts, last.content):
        return False
    is_torn = bool(save.findings or last.findings)
    return is_torn or _is_folder(save) or identity(storage, save.name) == identity(storage, last.name)


def _of_another_run(saves: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Report a file in the place of the link that has the counters of a save, but other contents."""
    steps = {save.step for save in saves if save.step is not None and not is_latest(save.name)}
    for save in saves:
        if is_latest(save.name) and save.step in steps and not save.findings:
            message = f"contains step {save.step}, but differs from the save of that step: it may be of another run"
            yield note(Code.RUN_MIXED, message, path=save.name, remedy="ckpttool diff shows the differences")


def _stamp(storage: Storage, save: Checkpoint) -> FileStamp | None:
    """Return the stamp of one of a save's files, which a link shares."""
    names = (*([f"{save.name}/{METADATA}"] if _is_folder(save) else []), *(shard.path for shard in save.shards[:1]))
    return next((stamp for name in names if (stamp := stamp_if_there(storage, name)) is not None), None)


def _is_folder(save: Checkpoint) -> bool:
    return save.format is not FormatName.TORCH_ZIP


def _traps(storage: Storage, listing: Listing, checkpoints: Sequence[Checkpoint]) -> Iterator[Finding]:
    from ckpttool.trainers.composer.own_choice import traps

    return traps(storage, listing, checkpoints)


def _age(checkpoint: Checkpoint) -> tuple[bool, int, bool, str]:
    return checkpoint.step is not None, checkpoint.step or 0, is_latest(checkpoint.name), checkpoint.name
