"""List Accelerate's saves; no record shows whether a save is finished, or how many ranks wrote it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpttool.core.decide.steps import read_name
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, NamedStep, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, in_order, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, Step, counted
from ckpttool.core.formats.torch.plain import integer_at
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.accelerate import FOLDER, LOADER, NUMBERED, RANK_STATE, TRAINER, folder_of
from ckpttool.trainers.accelerate.deepspeed_saves import with_tags
from ckpttool.trainers.accelerate.own_choice import traps
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import listed_damage, one_run, stray
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.hf_saves.save_folder import NamePattern, SaveFolder, absent_parts, file_names, list_save
from ckpttool.trainers.listing import Listing

_NTH = r"(?:_[0-9]{1,9})?"
"""Number in the file names of the second and later models, optimizers or schedules."""
_WEIGHTS = rf"(?:pytorch_)?model{_NTH}(?:-[0-9]{{5}}-of-[0-9]{{5}})?\.(?:safetensors|bin)"
_REGISTERED = r"custom_checkpoint_[0-9]{1,9}\.pkl"
_NAMED = file_names(
    NamePattern(_WEIGHTS, ShardRole.MODEL),
    NamePattern(rf"optimizer{_NTH}\.bin", ShardRole.OPTIMIZER),
    NamePattern(rf"(?:scheduler|sampler){_NTH}\.bin|scaler\.pt", ShardRole.STATE),
    NamePattern(LOADER, ShardRole.STATE),
    NamePattern(_REGISTERED, ShardRole.STATE),
    NamePattern(RANK_STATE, ShardRole.STATE),
)
_STEPS = ("step", "global_step")


class _Scanned(NamedTuple):
    """A save, with facts to compare across saves."""

    checkpoint: Checkpoint
    kinds: frozenset[str]
    """Names of the save's files and folders of slices that belong to no rank."""
    updates: int | None
    """The count in the save's schedule; None if the save has no schedule."""


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with their files and steps.

    Args:
        storage: The tree.
        listing: The names in its root.
        options: Data to collect in addition to the names.
    """
    entries = storage.entries(FOLDER) if listing.has(FOLDER) else []
    numbered = [entry.name for entry in entries if entry.kind is Kind.FOLDER and re.fullmatch(NUMBERED, entry.name)]
    folders = sorted((*map(folder_of, numbered), *_called_freely(listing)))
    scanned_saves = list(map_waiting(lambda folder: _scan_save(storage, folder, options), folders))
    checkpoints = sorted(
        _with_peers(scanned_saves), key=lambda save: (save.step is not None, save.step or 0, save.name)
    )
    strays = sorted(f"{FOLDER}/{entry.name}" for entry in entries if entry.name not in numbered) if numbered else []
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *traps(strays, checkpoints))),
        strays=tuple(strays),
    )


def _called_freely(listing: Listing) -> list[str]:
    """Return the saves with names from a script.

    Unfinished saves, which have no rank's state yet, are included if their names are similar.
    """
    within = dict(listing.inside(most=None))
    saves = [name for name, names in within.items() if any(re.fullmatch(RANK_STATE, name) for name in names)]
    stripped = {_without_numbers(name) for name in saves if name != _without_numbers(name)}
    cut = [name for name in within if name not in saves and _without_numbers(name) in stripped]
    return [*saves, *(name for name in cut if not within[name] or any(map(_NAMED, within[name])))]


def _without_numbers(name: str) -> str:
    return re.sub("[0-9]+", "#", name)


def _scan_save(storage: Storage, folder: str, options: ScanOptions) -> _Scanned:
    save, deepspeed_step = with_tags(storage, list_save(storage, folder, _NAMED, sizes=options.sizes), options)
    ranks = frozenset(
        Rank(int(match["rank"])) for name in save.names if (match := re.fullmatch(RANK_STATE, name)) is not None
    )
    world = max(ranks) + 1 if ranks else None
    findings = list(save.findings)
    if save.is_listed:
        findings += (*_lacking(save), *_absent_ranks(save, ranks, world or 0), *absent_parts(save))
    step, updates = _progress(storage, save, world)
    step = deepspeed_step if step is None else step
    checkpoint = Checkpoint(
        name=folder.rpartition("/")[2],
        scalars=Scalars(step=step),
        step=None if step is None else Step(step),
        step_source=StepSource.UNKNOWN if step is None else StepSource.CONTENT,
        named=_named(save.name.rpartition("/")[2]),
        step_remedy="save the step with the training: accelerator.register_for_checkpointing(an object with the step)",
        shards=save.shards,
        topology=Topology(world_size=world, shared=world is None),
        format=save.format,
        expected=save.expected,
        commit=CommitState.UNRECORDED if ranks else CommitState.UNCOMMITTED,
        content=Content.FULL if save.has(ShardRole.OPTIMIZER) else Content.UNKNOWN,
        findings=tuple(findings),
    )
    kinds = frozenset(name for name in save.names if _NAMED(name) and not re.fullmatch(RANK_STATE, name))
    return _Scanned(checkpoint, kinds, updates)


def _named(name: str) -> NamedStep:
    """Read the name of a save.

    Accelerate's automatic numbers count saves; all other names come from a script.
    """
    if re.fullmatch(NUMBERED, name) is None:
        return read_name(name)
    return NamedStep(stem="checkpoint_", number=Step(int(name.rpartition("_")[2])), counts_saves=True)


def _lacking(save: SaveFolder) -> Iterator[Finding]:
    if not any(name.startswith("random_states_") for name in save.names):
        message = "no rank's random_states, which are written last: the save is not complete"
        remedy = "resume from an older checkpoint; if a save is in progress, wait for it"
        yield listed_damage(Code.UNCOMMITTED_SAVE, message, save.name, remedy=remedy)
    if not save.has(ShardRole.MODEL):
        yield listed_damage(Code.SHARD_MISSING, "this folder has no weights", save.name)


def _absent_ranks(save: SaveFolder, ranks: frozenset[Rank], world: int) -> Iterator[Finding]:
    absent = sorted(set(range(world)) - ranks)
    if absent:
        message = f"the random-number states of {counted(len(absent), 'rank')} of {world} are missing"
        path = save.path(f"random_states_{absent[0]}.pkl")
        yield replace(listed_damage(Code.SHARD_MISSING, message, path), ranks=tuple(map(Rank, absent)))


def _progress(storage: Storage, save: SaveFolder, world: int | None) -> tuple[int | None, int | None]:
    """Return the step and the schedule's count.

    By default, Accelerate's schedule counts each rank's batches.
    """
    registered = sorted(name for name in save.names if re.fullmatch(_REGISTERED, name))
    counts = [first_value(storage, (save.path(name),)) for name in registered[:4]]
    steps = [step for count in counts for key in _STEPS if (step := integer_at(count, key)) is not None and step >= 0]
    has_schedule = "scheduler.bin" in save.names
    updates = integer_at(first_value(storage, (save.path("scheduler.bin"),)), "last_epoch") if has_schedule else None
    if steps:
        return steps[0], updates
    if updates is None or not world or updates % world:
        return None, updates
    return updates // world, updates


def _with_peers(scanned_saves: Sequence[_Scanned]) -> Iterator[Checkpoint]:
    """Yield the saves, with findings about files that a save lacks and most others have.

    No record names the files that should exist.
    """
    worlds = [scanned.checkpoint.topology.world_size for scanned in scanned_saves]
    most = max((world for world in worlds if world is not None), default=0)
    times = Counter(kind for scanned in scanned_saves for kind in scanned.kinds)
    usual = {kind for kind, count in times.items() if 2 * count > len(scanned_saves)}
    for scanned in scanned_saves:
        doubts = [*_fewer_ranks(scanned, most), *_fewer_files(scanned, usual)]
        checkpoint = scanned.checkpoint
        yield replace(checkpoint, findings=(*checkpoint.findings, *doubts)) if doubts else checkpoint


def _fewer_ranks(scanned: _Scanned, most: int) -> Iterator[Finding]:
    save, world = scanned.checkpoint, scanned.checkpoint.topology.world_size
    if world is None or world >= most:
        return
    if save.step and scanned.updates == save.step * world:
        return  # its schedule counted each rank's batches, so there were no more ranks
    yield suspect(
        Code.SHARD_MISSING,
        f"rank states of {counted(world, 'rank')}, while other saves here have {most}: if loaded, the states of the "
        "other ranks would be re-initialized without a warning",
        path=f"{folder_of(save.name, save.shards)}/random_states_{world}.pkl",
        ranks=tuple(map(Rank, range(world, most))),
        remedy="restore them from a copy, or resume from another checkpoint",
    )


def _fewer_files(scanned: _Scanned, usual: set[str]) -> Iterator[Finding]:
    folder = folder_of(scanned.checkpoint.name, scanned.checkpoint.shards)
    for name in sorted(usual - scanned.kinds):
        yield suspect(
            Code.SHARD_MISSING,
            "is missing, while most saves here have it",
            path=f"{folder}/{name}",
            remedy="restore it from a copy, or resume from another checkpoint",
        )
