"""MindFormers' legacy layout: `rank_N/{prefix}_rank_N[_k]-{epoch}_{step}.{ckpt|safetensors}`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.domain.checkpoint import Checkpoint, CommitState, Inventory, Rename, RunSummary, Topology
from ckpttool.domain.expectation import Evidence, Expected
from ckpttool.domain.finding import Finding, in_order
from ckpttool.domain.frozen import many
from ckpttool.domain.shard import FormatName, Shard, ShardRole
from ckpttool.domain.units import Rank
from ckpttool.records import SealPlace, own_path
from ckpttool.storage.base import Kind, Storage
from ckpttool.trainers.base import Listing, Members, Part, Refusal, ScanOptions
from ckpttool.trainers.common.listed import stamped
from ckpttool.trainers.common.tracker_file import TRACKER
from ckpttool.trainers.mindformers.epoch_step import EpochStep
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_LAYOUT,
    RANK_MARK,
    SUFFIX_OF_FORMAT,
    FileKind,
    FileName,
    checkpoint_name,
    file_name,
    parse_shape,
    rank_of_folder,
    shape_of,
)
from ckpttool.trainers.mindformers.layouts.pointers import meta_pointers, metas_naming
from ckpttool.trainers.mindformers.layouts.rank_expected import expected_of_ranks, path_for
from ckpttool.trainers.mindformers.layouts.rank_findings import file_findings, meta_findings
from ckpttool.trainers.mindformers.layouts.rank_folders import RankFolder, list_rank_folders
from ckpttool.trainers.mindformers.layouts.runs import (
    Cohort,
    Sample,
    align_runs,
    cohorts_of,
    reference_runs,
    runs_by_prefix,
)
from ckpttool.trainers.mindformers.layouts.samples import sample_cohort
from ckpttool.trainers.mindformers.scalars import RULES

if TYPE_CHECKING:
    from ckpttool.domain.load_settings import LoadSettings
    from ckpttool.domain.pointer import Pointer, PointerText


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


class MindFormersRank:
    """The layout of every MindFormers version, and the only one before 1.7."""

    name = RANK_LAYOUT
    sign = "rank_N/"
    is_tree = True

    def recognise(self, listing: Listing) -> bool:
        """Tell by a folder named `rank_N`, matched whole."""
        return any(entry.kind is Kind.FOLDER and rank_of_folder(entry.name) is not None for entry in listing.entries)

    def part(self, folder: str, file: str | None) -> Part | Refusal | None:
        """Take a rank's folder for all ranks, and one of its shards for the save on all ranks."""
        rank = rank_of_folder(folder)
        if rank is None:
            return None
        if file is None:
            return Part(focus=None, resolved_from="all ranks")
        parsed = parse_shape(shape_of(file, f"_rank_{rank}"))
        if parsed.kind is not FileKind.CHECKPOINT:
            return Refusal(f"is no checkpoint shard: expected NAME_rank_{rank}-EPOCH_STEP.ckpt")
        # By the file's own name: others may have the same label in another format, or in another training.
        return Part(focus=file, resolved_from=f"checkpoint {checkpoint_name(parsed.run, parsed.position)} on all ranks")

    def speaks_of_all(self, name: str) -> bool:
        """Tell by the tracker: a training that changed over from the newer layout leaves it."""
        return name == TRACKER

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
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
        return Inventory(
            root=storage.root,
            layout=self.name,
            checkpoints=tuple(checkpoints),
            runs=_summaries(checkpoints, _unfinished(cohorts, alignments)),
            findings=in_order(findings),
            unlisted=tuple(f"rank_{folder.rank}" for folder in folders if not folder.readable),
            folder_ranks=tuple(folder.rank for folder in folders),
            strays=tuple(stray_paths),
        )

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Weigh how many ranks each run had: no record says it."""
        return expected_of_ranks(inventory, evidence)

    def is_unfinished(self, name: str) -> bool:
        """Tell by the names under which MindFormers and Python write."""
        return parse_shape(name).kind is FileKind.IN_PROGRESS

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the ranks' shards: their folders hold those of other saves, too."""
        return Members(paths=tuple(shard.path for shard in checkpoint.shards))

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place outside the ranks' folders, which other saves share."""
        prefix, name = checkpoint.prefix, checkpoint.name
        # `x-_1` and `25_2` would give the name of `x` and `_1-25_2`.
        ambiguous = re.search(r"-_[0-9]+\Z", prefix) is not None
        label = f"{prefix}-{name}.{SUFFIX_OF_FORMAT[checkpoint.format]}"
        path = own_path(label, ".manifest.json", ambiguous=ambiguous)
        return SealPlace(path=path, layout=self.name, checkpoint=name, prefix=prefix)

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read these ranks' meta.json."""
        return meta_pointers(storage, ranks)

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Spell the meta.json of every rank that has a shard of it."""
        return metas_naming(checkpoint)

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Return rank 0's file name, or what it would be."""
        return path_for(checkpoint.shards[0], Rank(0)).rpartition("/")[2]

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Name the folder and the file: then every rank loads its own file of that name, and nothing is chosen."""
        from ckpttool.trainers.mindformers.load import LOAD_FORMAT, LoadKeys

        keys = LoadKeys(
            load_checkpoint=inventory.root,
            resume_training=_common_file_name(checkpoint),
            load_ckpt_format=LOAD_FORMAT[checkpoint.format],
            use_legacy_format=True,
        )
        return keys.settings(checkpoint.renames)


def _common_file_name(checkpoint: Checkpoint) -> str:
    """Return rank 0's file name as it is after the renames; MindFormers puts each rank's own number into it."""
    first = checkpoint.shards[0].path
    renamed = {rename.source: rename.target for rename in checkpoint.renames}
    return renamed.get(first, first).rpartition("/")[2]


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
        shards=tuple(shards),
        topology=Topology(),
        format=key.format,
        commit=CommitState.UNRECORDED,
        renames=_renames(key, shards, groups),
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
    return tuple(
        _summary(prefix, run, members, unfinished.get((prefix, run), -1))
        for (prefix, run), members in sorted(runs.items())
    )


def _summary(prefix: str, run: int, members: Sequence[Checkpoint], unfinished: int) -> RunSummary:
    steps = [member.step for member in members if member.step is not None]
    highest = max((member.shards[-1].rank or 0 for member in members), default=-1)  # they stand in rank order
    highest = max(highest, unfinished)
    return RunSummary(
        prefix=prefix,
        run=run,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        world_size=highest + 1,
    )
