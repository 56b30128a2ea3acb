"""What the names and meta.json in rank folders show, said once for all ranks that it is true of."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ckpttool.core.domain.finding import Code, Finding, Severity, note
from ckpttool.core.domain.units import MAX_RANKS, Rank, on_ranks
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.records import OWN_FOLDER
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_MARK,
    FileKind,
    FileName,
    checkpoint_name,
    parse_shape,
    shape_of,
)
from ckpttool.trainers.mindformers.layouts.pointers import MetaRecord, parse_meta
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder
from ckpttool.trainers.mindformers.layouts.runs import Cohort, Sample
from ckpttool.trainers.mindformers.scalars import EpochStep

_KINDS: dict[FileKind, tuple[Code, str]] = {
    FileKind.BREAKPOINT: (
        Code.BREAKPOINT_FILE,
        "a file saved while an exception unwound is no checkpoint: it stores the step within the epoch",
    ),
    FileKind.IN_PROGRESS: (Code.IN_PROGRESS, "a temporary file: a save is under way, or was cut off"),
    FileKind.OTHER_RANK: (Code.NAME_DISAGREES, "a file of another rank is not counted for this one"),
    FileKind.RESPELLED: (
        Code.SHARD_RESPELLED,
        "MindFormers writes no leading zeros and looks for no such name: not counted",
    ),
    FileKind.NETWORK: (Code.STRAY_FILE, "network weights without optimizer state are no checkpoint to resume from"),
    FileKind.TRAINABLE: (Code.STRAY_FILE, "trainable weights without optimizer state are no checkpoint to resume from"),
    FileKind.STRAY: (Code.STRAY_FILE, "the name is not one that MindFormers gives a checkpoint"),
}


def file_findings(cohorts: Iterable[Cohort], root_strays: Iterable[str]) -> tuple[list[Finding], list[str]]:
    """Report the files that are told apart from checkpoints, and return the paths of those that are strays."""
    findings, paths = [], []
    for name in root_strays:
        if name != OWN_FOLDER:
            paths.append(name)
            findings.append(_stray_in_root(name))
    seen: dict[str, list[RankFolder]] = defaultdict(list)
    for cohort in cohorts:
        for shape in cohort.folders[0].shapes:
            if parse_shape(shape).kind in _KINDS:
                seen[shape] += cohort.folders
    for shape, folders in seen.items():
        folders.sort(key=lambda folder: folder.rank)
        kind = parse_shape(shape).kind
        code, why = _KINDS[kind]
        if kind in {FileKind.STRAY, FileKind.OTHER_RANK, FileKind.RESPELLED}:
            paths += [folder.path_of(shape) for folder in folders]
        findings.append(
            note(code, f"{on_ranks(_ranks(folders))}: {why}", path=folders[0].path_of(shape), ranks=_ranks(folders))
        )
    return findings, sorted(paths)


def meta_findings(
    cohorts: Sequence[Cohort],
    samples: Sequence[Mapping[str, Sample]],
    alignments: Sequence[Mapping[str, Mapping[int, int]]],
) -> list[Finding]:
    """Compare every meta.json with the shards beside it. All of these are notes: the shards are the truth."""
    seen: dict[tuple[Code, Severity, str], list[RankFolder]] = defaultdict(list)
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
                seen[trouble] += folders
    findings = [_meta_finding(code, severity, message, folders) for (code, severity, message), folders in seen.items()]
    if len(saved) > 1:
        newest_saved = max(saved)
        told = {id(folder) for folders in seen.values() for folder in folders}  # what is wrong with these stands there
        behind = [
            folder
            for position, folders in saved.items()
            if position != newest_saved
            for folder in folders
            if id(folder) not in told
        ]
        message = f"these ranks' meta.json is not at {names[newest_saved]}, where others' is"
        findings += [_meta_finding(Code.META_DISAGREES, Severity.NOTE, message, behind)] if behind else []
    return findings


def _newest(
    cohort: Cohort, sampled: Mapping[str, Sample], alignment: Mapping[str, Mapping[int, int]]
) -> tuple[str, FileName] | None:
    """Find what was saved last, by true step; by label alone in a run of which some shard does not tell its step."""
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
) -> tuple[MetaRecord | None, tuple[Code, Severity, str] | None]:
    if newest is None:
        return None, None
    if meta is None:
        if any(finding.code is Code.META_UNREADABLE for finding in folder.findings):
            return None, None
        return None, (Code.META_MISSING, Severity.NOTE, "no meta.json; the shards tell the step instead")
    try:
        record = parse_meta(meta, what="meta.json")
    except ParseError as error:
        return None, (Code.META_UNREADABLE, Severity.NOTE, f"{error}; the shards tell the step instead")
    file = folder.name_of(record.file)
    hostile = RANK_MARK in record.file.replace(f"_rank_{RANK_MARK}", "")  # ours stands after `_rank_` alone
    if hostile or MetaRecord(position=record.position, file=file).escapes:
        message = "last_ckpt_file is no plain file name; it is not followed, and MindFormers must not be let near it"
        return None, (Code.UNSAFE_NAME, Severity.UNSAFE, message)
    return record, _compare(record, shape_of(file, f"_rank_{folder.rank}"), folder, newest, alignment)


def _compare(
    record: MetaRecord,
    shape: str,
    folder: RankFolder,
    newest: tuple[str, FileName],
    alignment: Mapping[str, Mapping[int, int]],
) -> tuple[Code, Severity, str] | None:
    newest_shape, newest_name = newest
    named = parse_shape(shape)
    if named.kind is not FileKind.CHECKPOINT or named.position != record.position:
        message = f"meta.json names {record.position} but a file that is not of that save"
        return Code.META_DISAGREES, Severity.NOTE, message
    at, newest_here = (_label(name, name.position, alignment) for name in (named, newest_name))
    if shape not in folder.shapes:
        if at == newest_here:  # of another prefix or format: the files' own names tell them apart
            at, newest_here = (name.replace(RANK_MARK, "N") for name in (shape, newest_shape))
        message = f"meta.json is at {at}, but its file is not there; the newest here is {newest_here}"
        return Code.META_AHEAD, Severity.NOTE, message
    if shape != newest_shape and (named.run, named.position) != (newest_name.run, newest_name.position):
        return Code.META_BEHIND, Severity.NOTE, f"meta.json is at {at}, but {newest_here} was saved after it"
    return None


def _label(name: FileName, position: EpochStep, alignment: Mapping[str, Mapping[int, int]]) -> str:
    """Spell what the tables call the checkpoint: by the run's number as most ranks count it."""
    return checkpoint_name(alignment.get(name.prefix, {}).get(name.run, name.run), position)


def _stray_in_root(name: str) -> Finding:
    message = "not a rank's folder: listed, never counted"
    if re.fullmatch(r"rank_[0-9]{7,}", name):
        message += f"; no training has more than {MAX_RANKS} ranks"
    if name.startswith("rank_"):
        message += " (MindFormers 1.7 to 2.1 count it as a rank and then miss the last one)"
    return note(Code.STRAY_FILE, message, path=name)


def _meta_finding(code: Code, severity: Severity, message: str, folders: list[RankFolder]) -> Finding:
    folders.sort(key=lambda folder: folder.rank)
    return Finding(
        code=code,
        severity=severity,
        message=f"{on_ranks(_ranks(folders))}: {message}",
        path=f"rank_{folders[0].rank}/meta.json",
        ranks=_ranks(folders),
    )


def _ranks(folders: Sequence[RankFolder]) -> tuple[Rank, ...]:
    return tuple(folder.rank for folder in folders)
