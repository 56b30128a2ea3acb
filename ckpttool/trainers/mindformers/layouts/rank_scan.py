"""List `rank_N/` folders, and group their files into checkpoints and runs.

All ranks' files from one save form a checkpoint, and saves from one start form a run. A finding about names or a
meta.json is reported once for all ranks to which it applies.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, repeat
from operator import attrgetter
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, Rename, RunSummary, Topology
from ckpttool.core.domain.finding import Code, Finding, Row, in_order, note, unsafe
from ckpttool.core.domain.frozen import many, replace
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, on_ranks
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import stamped
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_LAYOUT,
    RANK_MARK,
    SUFFIX_OF_FORMAT,
    FileKind,
    FileName,
    checkpoint_name,
    file_name,
    parse_shape,
    shape_of,
)
from ckpttool.trainers.mindformers.layouts.pointers import MetaRecord, parse_meta
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder, list_rank_folders
from ckpttool.trainers.mindformers.layouts.runs import (
    Cohort,
    Sample,
    align_runs,
    cohorts_of,
    reference_runs,
    runs_by_prefix,
    sample_cohort,
)
from ckpttool.trainers.mindformers.scalars import RULES, EpochStep

_STEP_REMEDY = "give --sink-size (or steps per epoch, without data sinking) if the run was never resumed"
_ONE_NAME = "the ranks disagree about the run's suffix, but MindFormers loads by one name"


class _Key(NamedTuple):
    """The key that groups files from several ranks into one checkpoint."""

    prefix: str
    run: int
    position: EpochStep
    format: FormatName


class _Group:
    """A checkpoint that is still being assembled."""

    __slots__ = ("sample", "shards")

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.shards: list[Shard] = []


def scan_ranks(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the names in every rank's folder and open one header per save and cohort."""
    folders, strays = list_rank_folders(storage, listing, sizes=options.sizes)
    cohorts = cohorts_of(folders)
    samples = [sample_cohort(storage, cohort, options) for cohort in cohorts]
    groups, alignments = _group(cohorts, samples)
    checkpoints = sorted((_checkpoint(key, groups) for key in groups), key=_order)
    if not options.sizes:
        checkpoints = _with_times(storage, checkpoints)
    file_notes, stray_paths = file_findings(cohorts, strays)
    findings: list[Finding] = [finding for folder in folders for finding in folder.findings]
    findings += file_notes
    findings += meta_findings(cohorts, samples, alignments)
    nothing: tuple[str, ...] = ()
    if any("/" in path for path in stray_paths):
        from ckpttool.trainers.mindformers.layouts.misplaced import mere_names

        nothing = mere_names(storage, stray_paths)
    return Inventory(
        root=storage.root,
        layout=RANK_LAYOUT,
        checkpoints=tuple(checkpoints),
        runs=_summaries(checkpoints, _unfinished(cohorts, alignments)),
        findings=in_order(findings),
        unlisted=tuple(f"rank_{folder.rank}" for folder in folders if not folder.readable),
        folder_ranks=tuple(folder.rank for folder in folders),
        strays=tuple(stray_paths),
        mere_names=nothing,
    )


def _group(
    cohorts: Sequence[Cohort], samples: Sequence[Mapping[str, Sample]]
) -> tuple[dict[_Key, _Group], list[dict[str, dict[int, int]]]]:
    """Group the files of all ranks by save, and also return the matched runs of each cohort."""
    arranged = [runs_by_prefix(cohort, sampled) for cohort, sampled in zip(cohorts, samples, strict=True)]
    references = reference_runs(arranged)
    groups: dict[_Key, _Group] = {}
    alignments = []
    for cohort, sampled, by_prefix in zip(cohorts, samples, arranged, strict=True):
        alignment = {prefix: align_runs(runs, references[prefix]) for prefix, runs in by_prefix.items()}
        alignments.append(alignment)
        for index, shape, name in cohort.checkpoints:
            key = _Key(name.prefix, alignment[name.prefix][name.run], name.position, name.format)
            group = groups.setdefault(key, _Group(sampled[shape]))
            if group.sample.step is None:
                group.sample = sampled[shape]
            group.shards += _shards(cohort.folders, index, shape, name)
    return groups, alignments


def _shards(folders: Iterable[RankFolder], index: int, shape: str, name: FileName) -> list[Shard]:
    before, _, after = shape.partition(RANK_MARK)
    ranks = [folder.rank for folder in folders]
    return many(  # there may be tens of thousands
        Shard,
        len(ranks),
        path=[f"rank_{rank}/{before}{rank}{after}" for rank in ranks],
        rank=ranks,
        role=repeat(ShardRole.FULL),
        format=repeat(name.format),
        run=repeat(name.run),
        stamp=[stamps[index] if stamps else None for _, _, _, stamps, _, _ in folders],
        least=repeat(None),
        entries=repeat(()),
    )


def _checkpoint(key: _Key, groups: Mapping[_Key, _Group]) -> Checkpoint:
    group = groups[key]
    state = group.sample.state
    shards = sorted(group.shards, key=attrgetter("rank", "path"))
    return Checkpoint(
        name=checkpoint_name(key.run, key.position),
        prefix=key.prefix,
        run=key.run,
        label=str(key.position),
        sort_key=key.position.sort_key,
        facts=(*key.position.facts, ("optimizer_step", state.global_step)),
        rules=RULES,
        claims=key.position.claims,
        scalars=state.scalars,
        step=group.sample.step,
        step_source=group.sample.source,
        step_remedy=_STEP_REMEDY,
        shards=tuple(shards),
        topology=Topology(),
        format=key.format,
        commit=CommitState.UNRECORDED,
        content=Content.FULL,
        renames=_renames(key, shards, groups),
        records_measured_health=state.by_own_writer,
    )


def _renames(key: _Key, shards: Sequence[Shard], groups: Mapping[_Key, _Group]) -> tuple[Rename, ...]:
    """Return renames that give all files the suffix used by most ranks (in a tie, the suffix of the lowest rank).

    A suffix is skipped if a rank already has a different file with that suffix: a rename must not overwrite a shard.
    """
    if len({shard.run for shard in shards}) == 1:
        return ()
    counts = Counter(shard.run for shard in shards)
    taken = {shard.path for group in groups.values() for shard in group.shards}
    numbers = chain((run for run, _ in counts.most_common()), count(max(counts) + 1))
    plans = (tuple(_rename(key, shard, run) for shard in shards if shard.run != run) for run in numbers)
    return next(plan for plan in plans if taken.isdisjoint(rename.target for rename in plan))


def _rename(key: _Key, shard: Shard, run: int) -> Rename:
    name = file_name(key.prefix, shard.rank or 0, run, key.position, SUFFIX_OF_FORMAT[key.format])
    return Rename(source=shard.path, target=f"rank_{shard.rank}/{name}", why=_ONE_NAME)


def _with_times(storage: Storage, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Add the times of saves whose names differ between ranks, or may combine two runs."""
    saves: dict[tuple[str, str | None, FormatName], list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        saves[checkpoint.prefix, checkpoint.label, checkpoint.format].append(checkpoint)
    doubtful = {
        checkpoint.key
        for same_save in saves.values()
        if len(same_save) > 1 and len({save.ranks for save in same_save}) > 1
        for checkpoint in same_save
    }
    return [
        stamped(storage, checkpoint) if checkpoint.renames or checkpoint.key in doubtful else checkpoint
        for checkpoint in checkpoints
    ]


def _order(checkpoint: Checkpoint) -> tuple[str, int, int, tuple[int, ...], str]:
    step = -1 if checkpoint.step is None else checkpoint.step
    return (checkpoint.prefix, checkpoint.run, step, checkpoint.sort_key, checkpoint.format.value)


def _unfinished(
    cohorts: Iterable[Cohort], alignments: Iterable[Mapping[str, Mapping[int, int]]]
) -> dict[tuple[str, int], int]:
    """Return the highest rank that was interrupted while saving, by prefix and run.

    That rank took part in the run.
    """
    highest: dict[tuple[str, int], int] = {}
    for cohort, alignment in zip(cohorts, alignments, strict=True):
        for shape in cohort.folders[0].shapes:
            name = parse_shape(shape)
            if name.kind is FileKind.IN_PROGRESS and name.prefix:
                run = alignment.get(name.prefix, {}).get(name.run, name.run)
                key = name.prefix, run
                highest[key] = max(highest.get(key, -1), cohort.folders[-1].rank)
    return highest


def _summaries(checkpoints: Iterable[Checkpoint], unfinished: Mapping[tuple[str, int], int]) -> tuple[RunSummary, ...]:
    runs: dict[tuple[str, int], list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        runs[checkpoint.prefix, checkpoint.run].append(checkpoint)
    summaries = []
    for (prefix, run), members in sorted(runs.items()):
        steps = [member.step for member in members if member.step is not None]
        highest = max(member.shards[-1].rank or 0 for member in members)  # they are in rank order
        summaries.append(
            RunSummary(
                prefix=prefix,
                run=run,
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                world_size=max(highest, unfinished.get((prefix, run), -1)) + 1,
            )
        )
    return tuple(summaries)


_KINDS: dict[FileKind, tuple[Row, str]] = {
    FileKind.BREAKPOINT: (
        MindFormersCode.BREAKPOINT_FILE,
        "a file saved during an exception is not a checkpoint: it has the step within the epoch",
    ),
    FileKind.IN_PROGRESS: (Code.IN_PROGRESS, "a temporary file: a save is in progress, or was interrupted"),
    FileKind.OTHER_RANK: (Code.NAME_DISAGREES, "a file of another rank is not counted for this one"),
    FileKind.RESPELLED: (
        MindFormersCode.SHARD_RESPELLED,
        "MindFormers neither writes names with leading zeros nor looks for them: not counted",
    ),
    FileKind.NETWORK: (Code.STRAY_FILE, "network weights without optimizer state are not a checkpoint to resume from"),
    FileKind.TRAINABLE: (
        Code.STRAY_FILE,
        "trainable weights without optimizer state are not a checkpoint to resume from",
    ),
    FileKind.STRAY: (Code.STRAY_FILE, "MindFormers does not give checkpoints such a name"),
}


def file_findings(cohorts: Iterable[Cohort], root_strays: Iterable[str]) -> tuple[list[Finding], list[str]]:
    """Report the files that are not checkpoints, and return the paths of strays."""
    findings, paths = [], []
    for name in root_strays:
        if name != OWN_FOLDER:
            paths.append(name)
            findings.append(_stray_in_root(name))
    folders_by_text: dict[str, list[RankFolder]] = defaultdict(list)
    for cohort in cohorts:
        for shape in cohort.folders[0].shapes:
            if parse_shape(shape).kind in _KINDS:
                folders_by_text[shape] += cohort.folders
    for shape, folders in folders_by_text.items():
        folders.sort(key=lambda folder: folder.rank)
        kind = parse_shape(shape).kind
        code, why = _KINDS[kind]
        if kind in {FileKind.STRAY, FileKind.OTHER_RANK, FileKind.RESPELLED}:
            paths += [folder.path_of(shape) for folder in folders]
        ranks = tuple(folder.rank for folder in folders)
        findings.append(note(code, f"{on_ranks(ranks)}: {why}", path=folders[0].path_of(shape), ranks=ranks))
    return findings, sorted(paths)


def meta_findings(
    cohorts: Sequence[Cohort],
    samples: Sequence[Mapping[str, Sample]],
    alignments: Sequence[Mapping[str, Mapping[int, int]]],
) -> list[Finding]:
    """Compare every meta.json with the shards next to it. The findings are only notes, because the shards decide."""
    folders_by_finding: dict[Finding, list[RankFolder]] = defaultdict(list)
    saved: dict[EpochStep, list[RankFolder]] = defaultdict(list)
    names: dict[EpochStep, str] = {}
    for cohort, sampled, alignment in zip(cohorts, samples, alignments, strict=True):
        newest = _newest(cohort, sampled, alignment)
        by_meta: dict[bytes | None, list[RankFolder]] = defaultdict(list)
        for folder in cohort.folders:
            by_meta[folder.meta].append(folder)
        for meta, folders in by_meta.items():
            record, trouble = _judge_meta(meta, folders[0], newest, alignment)
            if record is not None:
                saved[record.position] += folders
                file = shape_of(folders[0].name_of(record.file), f"_rank_{folders[0].rank}")
                names.setdefault(record.position, _label(parse_shape(file), record.position, alignment))
            if trouble is not None:
                folders_by_finding[trouble] += folders
    if len(saved) > 1:
        newest_saved = max(saved)
        lagging = note(
            MindFormersCode.META_DISAGREES,
            f"the meta.json of these ranks is not at {names[newest_saved]}, unlike that of other ranks",
        )
        reported = {folder.rank for folders in folders_by_finding.values() for folder in folders}
        for position, folders in saved.items():
            unreported = [folder for folder in folders if folder.rank not in reported]
            if position != newest_saved and unreported:
                folders_by_finding[lagging] += unreported
    return [_on_all(finding, folders) for finding, folders in folders_by_finding.items()]


def _newest(
    cohort: Cohort, sampled: Mapping[str, Sample], alignment: Mapping[str, Mapping[int, int]]
) -> tuple[str, FileName] | None:
    """Return the latest save by true step; None if there is no save.

    In a run that has a shard with an unknown step, the labels decide.
    """
    by_label = {
        alignment[name.prefix][name.run] for _, shape, name in cohort.checkpoints if sampled[shape].step is None
    }

    def lineage(item: tuple[str, FileName]) -> tuple[int, int, EpochStep]:
        shape, name = item
        run = alignment[name.prefix][name.run]
        return (run, 0 if run in by_label else sampled[shape].step or 0, name.position)

    return max(((shape, name) for _, shape, name in cohort.checkpoints), key=lineage, default=None)


def _judge_meta(
    meta: bytes | None,
    folder: RankFolder,
    newest: tuple[str, FileName] | None,
    alignment: Mapping[str, Mapping[int, int]],
) -> tuple[MetaRecord | None, Finding | None]:
    """Return a rank's record if the record is valid, and any problem with it."""
    if newest is None:
        return None, None
    if meta is None:
        if any(finding.code is Code.META_UNREADABLE for finding in folder.findings):
            return None, None
        return None, note(MindFormersCode.META_MISSING, "no meta.json; the step is taken from the shards")
    try:
        record = parse_meta(meta, where="meta.json")
    except ParseError as error:
        return None, note(Code.META_UNREADABLE, f"{error}; the step is taken from the shards")
    file = folder.name_of(record.file)
    hostile = RANK_MARK in record.file.replace(f"_rank_{RANK_MARK}", "")  # RANK_MARK occurs only after `_rank_`
    if hostile or MetaRecord(position=record.position, file=file).escapes:
        message = "last_ckpt_file is not a plain file name; it is not followed, and MindFormers must not read it"
        return None, unsafe(Code.UNSAFE_NAME, message)
    return record, _compare(record, shape_of(file, f"_rank_{folder.rank}"), folder, newest, alignment)


def _compare(
    record: MetaRecord,
    shape: str,
    folder: RankFolder,
    newest: tuple[str, FileName],
    alignment: Mapping[str, Mapping[int, int]],
) -> Finding | None:
    newest_shape, newest_name = newest
    named = parse_shape(shape)
    if named.kind is not FileKind.CHECKPOINT or named.position != record.position:
        missing = "" if shape in folder.shapes else ", which does not exist"
        newest_save = _label(newest_name, newest_name.position, alignment)
        message = (
            f"meta.json is at {record.position}, but names the file {shape.replace(RANK_MARK, 'N')} of another save"
            f"{missing}; the newest save here is {newest_save}"
        )
        return note(MindFormersCode.META_DISAGREES, message)
    at, newest_here = (_label(name, name.position, alignment) for name in (named, newest_name))
    if shape not in folder.shapes:
        if at == newest_here:  # of another prefix or format: the file names differ
            at, newest_here = (name.replace(RANK_MARK, "N") for name in (shape, newest_shape))
        message = f"meta.json is at {at}, but its file does not exist; the newest here is {newest_here}"
        return note(MindFormersCode.META_AHEAD, message)
    if shape != newest_shape and (named.run, named.position) != (newest_name.run, newest_name.position):
        return note(MindFormersCode.META_BEHIND, f"meta.json is at {at}, but {newest_here} was saved after it")
    return None


def _label(name: FileName, position: EpochStep, alignment: Mapping[str, Mapping[int, int]]) -> str:
    """Format the checkpoint's name for tables, with the run's number on most ranks."""
    return checkpoint_name(alignment.get(name.prefix, {}).get(name.run, name.run), position)


def _stray_in_root(name: str) -> Finding:
    message = "not a rank's folder: listed, but never counted"
    if re.fullmatch(r"rank_[0-9]{7,}", name):
        message += f"; a training has at most {MAX_RANKS} ranks"
    if name.startswith("rank_"):
        message += " (MindFormers 1.7 to 2.1 count it as a rank and then miss the last rank)"
    return note(Code.STRAY_FILE, message, path=name)


def _on_all(finding: Finding, folders: list[RankFolder]) -> Finding:
    """Merge a finding about the meta.json of several ranks into a single finding."""
    ranks = tuple(sorted(folder.rank for folder in folders))
    path = f"rank_{ranks[0]}/meta.json"
    return replace(finding, message=f"{on_ranks(ranks)}: {finding.message}", path=path, ranks=ranks)
