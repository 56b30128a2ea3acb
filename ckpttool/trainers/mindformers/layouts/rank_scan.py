"""List `rank_N/` folders: files of all ranks that one save wrote become a checkpoint, saves of one start a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, repeat
from operator import attrgetter
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, Rename, RunSummary, Topology
from ckpttool.core.domain.finding import Finding, in_order
from ckpttool.core.domain.frozen import many
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import stamped
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_LAYOUT,
    RANK_MARK,
    SUFFIX_OF_FORMAT,
    FileKind,
    FileName,
    checkpoint_name,
    file_name,
    parse_shape,
)
from ckpttool.trainers.mindformers.layouts.rank_findings import file_findings, meta_findings
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
_ONE_NAME = "ranks disagree about the run's suffix, and MindFormers loads by one name"


class _Key(NamedTuple):
    """What makes files of several ranks one checkpoint."""

    prefix: str
    run: int
    position: EpochStep
    format: FormatName


class _Group:
    """A checkpoint while it is put together."""

    __slots__ = ("sample", "shards")

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.shards: list[Shard] = []


def scan_ranks(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the names in every rank's folder and open one header a save and cohort."""
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
    """Put files of all ranks together that one save wrote; also return how each cohort's runs were matched."""
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
    return many(  # of tens of thousands
        Shard,
        len(ranks),
        path=[f"rank_{rank}/{before}{rank}{after}" for rank in ranks],
        rank=ranks,
        role=repeat(ShardRole.FULL),
        format=repeat(name.format),
        run=repeat(name.run),
        stamp=[stamps[index] if stamps else None for _, _, _, stamps, _, _ in folders],
        least=repeat(None),
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
    """Say which files must take the suffix that most ranks' files have (ties: that of the lowest rank).

    A suffix under which a rank has another file already is passed over: a rename must not overwrite a shard.
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
    """Take the times of saves of which names leave open whether they are two runs' in one, or say that they differ."""
    saves: dict[tuple[str, str | None, FormatName], list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        saves[checkpoint.prefix, checkpoint.label, checkpoint.format].append(checkpoint)
    doubtful = {
        checkpoint.key
        for alike in saves.values()
        if len(alike) > 1 and len({save.ranks for save in alike}) > 1
        for checkpoint in alike
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
    """Return the highest rank that was cut off while it saved, by prefix and run: it is a rank of that run."""
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
        highest = max(member.shards[-1].rank or 0 for member in members)  # they stand in rank order
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
