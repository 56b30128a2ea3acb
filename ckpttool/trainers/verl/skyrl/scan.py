"""List `global_step_*/` folders with the files of all models, and read each save's record of its step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    NamedStep,
    StepSource,
    Topology,
)
from ckpttool.core.domain.finding import Code, Finding, in_order, note, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Step
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common import SKYRL_TRACKER
from ckpttool.trainers.common.listed import by_rank, listed_damage, one_run, stray, timed, tracked_by
from ckpttool.trainers.common.saved_values import count_at, first_value
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.verl import DATA, KINDS, step_of
from ckpttool.trainers.verl.roles import RoleFolder, is_role, look_at_role, state_shard
from ckpttool.trainers.verl.skyrl import ASYNC_STATE, POLICY, ROLES, SFT, STATE, TRAINER, is_fine_tuning
from ckpttool.trainers.verl.tracker import read_tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """A save, judged by its names and its record."""

    name: str
    roles: tuple[RoleFolder, ...]
    states: tuple[Shard, ...]
    """The driver's files: its record, and the states of its data loader."""
    is_by_megatron: bool
    """Whether Megatron workers saved the policy, whose files are not read here."""
    step: int | None
    """Step in the record; None if there is no readable record."""
    is_fine_tuning: bool
    findings: tuple[Finding, ...]
    is_unlisted: bool = False
    """Whether the folder cannot be listed, so that its contents are unknown."""

    def has(self, name: str) -> bool:
        """Return whether the save has a file of the driver."""
        return any(shard.path == f"{self.name}/{name}" for shard in self.states)


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with the step in the record of each."""
    steps = {name: step for name in listing.folders() if (step := step_of(name)) is not None}
    names = sorted(steps, key=lambda name: (steps[name], name))
    saves = list(map_waiting(partial(_scan_save, storage, options=options), names))
    start = "with resume_mode=latest SkyRL"
    tracked, trouble = read_tracker(storage, SKYRL_TRACKER, names, start=start, without_save="stops here")
    if any(save.step not in {None, steps[save.name]} for save in saves if tracked and save.name == tracked.name):
        tracked = None  # a copy in the place of the save that it named shows no progress
    checkpoints = timed(storage, [_checkpoint(save, saves) for save in saves], tracked)
    known_names = {SKYRL_TRACKER, OWN_FOLDER, *names}
    strays = tuple(entry.name for entry in listing.entries if entry.name not in known_names)
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(tracked_by(checkpoints, None if tracked is None else tracked.name)),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *trouble)),
        strays=strays,
        tracked=tracked,
    )


def _scan_save(storage: Storage, name: str, *, options: ScanOptions) -> _Save:
    try:
        entries = {entry.name: entry.kind for entry in storage.entries(name)}
    except OSError as error:
        return _Save(
            name=name,
            roles=(),
            states=(),
            is_by_megatron=False,
            step=None,
            is_fine_tuning=False,
            findings=(unreadable(name, error),),
            is_unlisted=True,
        )
    roles = [role for role in sorted(entries) if is_role(storage, name, role, entries[role], ROLES)]
    own_files = [own_file for own_file in (ASYNC_STATE, DATA, STATE) if own_file in entries]
    record = first_value(storage, [f"{name}/{STATE}"]) if STATE in entries else None
    strays = sorted(entries.keys() - {*roles, *own_files, MANIFEST_NAME})
    return _Save(
        name=name,
        roles=tuple(look_at_role(storage, name, role, options) for role in roles),
        states=tuple(state_shard(storage, f"{name}/{own}", None, ShardRole.STATE, options) for own in own_files),
        is_by_megatron=POLICY in roles and _has_slices(storage, f"{name}/{POLICY}"),
        step=count_at(record, "global_step"),
        is_fine_tuning=is_fine_tuning(record),
        findings=tuple(stray(f"{name}/{stray_name}") for stray_name in strays),
    )


def _has_slices(storage: Storage, folder: str) -> bool:
    try:
        return any(entry.name == METADATA for entry in storage.entries(folder))
    except OSError:  # reported with the folder's files
        return False


def _checkpoint(save: _Save, saves: Sequence[_Save]) -> Checkpoint:
    named = step_of(save.name)
    step, source = _step(save, named)
    findings = (*save.findings, *(finding for role in save.roles for finding in role.findings), *_lacks(save, saves))
    worlds = {role.world for role in save.roles if role.world is not None}
    states = {own for own in (STATE, ASYNC_STATE) for save_seen in saves if save_seen.has(own)}
    commit = CommitState.UNRECORDED
    if STATE in states:
        commit = CommitState.COMMITTED if save.has(STATE) else CommitState.UNCOMMITTED
    if save.is_unlisted:
        commit = CommitState.UNKNOWN
    has_optimizer = any("optim" in role.kinds for role in save.roles)
    return Checkpoint(
        name=save.name,
        scalars=Scalars(step=None if save.step is None else Step(save.step)),
        step=step,
        step_source=source,
        named=NamedStep(stem="global_step_", number=named),
        shards=by_rank((*(shard for role in save.roles for shard in role.shards), *save.states)),
        topology=Topology(world_size=max(worlds) if worlds else None),
        format=FormatName.TORCH_ZIP,
        facts=((SFT, 1),) if save.is_fine_tuning else (),
        expected=_expected(save, states),
        commit=commit,
        content=Content.FULL if has_optimizer else Content.UNKNOWN,
        findings=findings,
    )


def _step(save: _Save, named: Step | None) -> tuple[Step | None, StepSource]:
    """Return the step of a save; it is unknown if its record cannot be read."""
    if save.step is not None:
        return Step(save.step), StepSource.CONTENT
    return (None, StepSource.UNKNOWN) if save.has(STATE) else (named, StepSource.NAME)


def _expected(save: _Save, states: Iterable[str]) -> tuple[str, ...]:
    """Return the files that a save must have; none, and so an unknown answer, if they cannot be read here.

    Args:
        save: The save.
        states: The driver's files that any save has.
    """
    if save.is_by_megatron or save.is_unlisted:
        return ()
    of_ranks = (
        f"{role.path}/{kind}_world_size_{role.world}_rank_{rank}.pt"
        for role in save.roles
        for kind in sorted(KINDS)
        for rank in range(role.world or 0)
    )
    # A save without the record is unfinished, which is not the loss of a file.
    of_driver = (f"{save.name}/{own}" for own in sorted(states) if own != STATE or save.has(STATE))
    return *of_ranks, *of_driver


def _lacks(save: _Save, saves: Sequence[_Save]) -> Iterator[Finding]:
    """Report models that the save lacks, and a missing state of its data loader; none if it cannot be listed."""
    if save.is_unlisted:
        return
    with_files = {role.name for role in save.roles if role.kinds}
    if POLICY not in with_files and not save.is_by_megatron and not any(role.findings for role in save.roles):
        message = "the policy has no file of a rank, and SkyRL loads no save without it"
        yield listed_damage(Code.SHARD_MISSING, message, f"{save.name}/{POLICY}")
    elsewhere = {role.name for save_seen in saves for role in save_seen.roles if role.kinds}
    for role in sorted(elsewhere - {POLICY, *(role.name for role in save.roles)}):
        message = f"other saves have {role}/, this one does not"
        remedy = "resume from another checkpoint; if a save is in progress, wait for it"
        yield suspect(Code.METADATA_INCOMPLETE, message, path=save.name, remedy=remedy)
    if not save.has(DATA):
        message = (
            "there is no data.pt, so the position in the data is unknown: SkyRL starts the data from the beginning"
        )
        yield note(Code.DATA_RESTARTS, message, path=f"{save.name}/{DATA}")
