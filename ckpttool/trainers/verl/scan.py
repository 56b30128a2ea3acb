"""List `global_step_*/` folders with the files of all roles, and read the tracker beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpttool.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    StepSource,
    Topology,
    Tracked,
)
from ckpttool.domain.finding import Code, Finding, in_order, note, suspect
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.scalars import Scalars
from ckpttool.domain.shard import FormatName, Shard, ShardRole
from ckpttool.domain.units import MAX_RANKS, Rank
from ckpttool.formats.strict_json import ParseError
from ckpttool.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.storage.base import Kind, Storage, unreadable
from ckpttool.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import (
    listed_damage,
    lost_link,
    one_run,
    stamp_if_there,
    stamped,
    stray,
    tracked_in,
)
from ckpttool.trainers.common.tracker_file import TRACKER, tracked_step
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.verl import Verl
from ckpttool.trainers.verl.names import DATA, KINDS, ROLES, STATES, folder_of, step_of

_OTHER_WORLD = "move away what another number of ranks saved, or resume from another checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleFolder:
    """The folder of one model in a save."""

    name: str
    """`actor`."""
    shards: tuple[Shard, ...]
    kinds: frozenset[str]
    """Of files that any rank has."""
    worlds: Counter[int]
    """Files by the number of ranks that their names tell."""
    findings: tuple[Finding, ...]

    @property
    def world(self) -> int | None:
        """What most names tell; None where there is no file."""
        return max(self.worlds, key=lambda world: (self.worlds[world], world)) if self.worlds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """A save as its names show it."""

    name: str
    roles: tuple[_RoleFolder, ...]
    data: Shard | None
    findings: tuple[Finding, ...]


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """Read each save's names; no shard is opened.

    Args:
        storage: The tree.
        listing: Of its root.
        options: What to take beyond the names.
    """
    saves = (name for name in listing.folders() if step_of(name) is not None)
    names = sorted(saves, key=lambda name: (step_of(name) or 0, name))
    seen = list(map_waiting(lambda name: _look(storage, name, options), names))
    checkpoints = [_checkpoint(save, seen) for save in seen]
    known = {TRACKER, OWN_FOLDER, *names}
    strays = tuple(entry.name for entry in listing.entries if entry.name not in known)
    tracked, trouble = _tracker(storage, set(names))
    if tracked is not None:  # times tell whether what it does not cover was saved before it or after
        checkpoints = [
            stamped(storage, save) if (save.step or 0) > (tracked.step or 0) else save for save in checkpoints
        ]
    return Inventory(
        root=storage.root,
        layout=Verl.name,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *trouble)),
        strays=strays,
        tracked=tracked,
    )


def _look(storage: Storage, name: str, options: ScanOptions) -> _Save:
    try:
        entries = {entry.name: entry.kind for entry in storage.entries(name)}
    except OSError as error:
        return _Save(name=name, roles=(), data=None, findings=(unreadable(name, error),))
    roles = tuple(_look_at_role(storage, name, role, options) for role in ROLES if role in entries)
    strays = sorted(entries.keys() - {*ROLES, DATA, MANIFEST_NAME})
    data = _shard(storage, f"{name}/{DATA}", None, ShardRole.STATE, options) if DATA in entries else None
    return _Save(name=name, roles=roles, data=data, findings=tuple(stray(f"{name}/{each}") for each in strays))


def _look_at_role(storage: Storage, save: str, role: str, options: ScanOptions) -> _RoleFolder:
    folder = f"{save}/{role}"
    shards: list[Shard] = []
    findings: list[Finding] = []
    kinds: set[str] = set()
    worlds: Counter[int] = Counter()
    try:
        entries = sorted(storage.entries(folder))
    except OSError as error:
        entries, findings = [], [unreadable(folder, error)]
    for entry in entries:
        match, path = re.fullmatch(STATES, entry.name), f"{folder}/{entry.name}"
        if match is None or max(int(match["rank"]), int(match["world"])) > MAX_RANKS:
            continue  # of the tokenizer and the model's config it keeps copies here
        rank = Rank(int(match["rank"]))
        kinds.add(match["kind"])
        worlds[int(match["world"])] += 1
        shards.append(_shard(storage, path, rank, KINDS[match["kind"]], options))
        findings += lost_link(storage, path, rank) if entry.kind is Kind.LOST else []
    if len(worlds) > 1:
        told = ", ".join(map(str, sorted(worlds)))
        message = f"files of several world sizes in one folder: {told}"
        findings.append(listed_damage(Code.WORLD_SIZE_DIFFERS, message, folder, remedy=_OTHER_WORLD))
    return _RoleFolder(
        name=role,
        shards=tuple(sorted(shards, key=lambda shard: (shard.rank or 0, shard.path))),
        kinds=frozenset(kinds),
        worlds=worlds,
        findings=tuple(findings),
    )


def _shard(storage: Storage, path: str, rank: Rank | None, role: ShardRole, options: ScanOptions) -> Shard:
    stamp = stamp_if_there(storage, path) if options.sizes else None
    return Shard(path=path, rank=rank, role=role, format=FormatName.TORCH_ZIP, stamp=stamp)


def _checkpoint(save: _Save, saves: Sequence[_Save]) -> Checkpoint:
    step = step_of(save.name)
    kinds = {role.name: _kinds(saves, role.name) for role in save.roles}
    findings = (*save.findings, *(finding for role in save.roles for finding in role.findings), *_lacks(save, saves))
    worlds = {role.world for role in save.roles if role.world is not None}
    shards = (*(shard for role in save.roles for shard in role.shards), *((save.data,) if save.data else ()))
    return Checkpoint(
        name=save.name,
        scalars=Scalars(step=step),
        step=step,
        step_source=StepSource.NAME,
        shards=tuple(sorted(shards, key=lambda shard: (shard.rank or 0, shard.path))),
        topology=Topology(world_size=max(worlds) if worlds else None),
        format=FormatName.TORCH_ZIP,
        expected=tuple(
            f"{save.name}/{role.name}/{kind}_world_size_{role.world}_rank_{rank}.pt"
            for role in save.roles
            for kind in sorted(kinds[role.name])
            for rank in range(role.world or 0)
        ),
        commit=CommitState.UNRECORDED,
        content=_content(frozenset().union(*kinds.values())),
        findings=findings,
    )


def _kinds(saves: Sequence[_Save], role: str) -> frozenset[str]:
    """Return the kinds of files that any save has of a role: the training's config says which, for all alike."""
    return frozenset(kind for save in saves for each in save.roles if each.name == role for kind in each.kinds)


def _content(kinds: frozenset[str]) -> Content:
    if not kinds:
        return Content.UNKNOWN
    return Content.FULL if "optim" in kinds else Content.WEIGHTS_ONLY


def _lacks(save: _Save, saves: Sequence[_Save]) -> Iterator[Finding]:
    """Find what other saves have and this has not."""
    elsewhere = {role.name for each in saves for role in each.roles} - {role.name for role in save.roles}
    for role in sorted(elsewhere):
        message = f"other saves hold {role}/, this one does not"
        remedy = "resume from another checkpoint; where a save is under way, wait for it"
        yield suspect(Code.METADATA_INCOMPLETE, message, path=save.name, remedy=remedy)
    if save.data is None:
        message = "there is no data.pt, so nothing tells how far the data had been read: verl begins them anew"
        yield note(Code.DATA_RESTARTS, message, path=f"{save.name}/{DATA}")


def _tracker(storage: Storage, names: set[str]) -> tuple[Tracked | None, list[Finding]]:
    """Read the tracker, which is written last, and never where saves are asynchronous: it is no verdict on a save."""
    try:
        step = tracked_step(storage)
    except FileNotFoundError:
        then = "with resume_mode=auto verl begins from scratch"
        return None, [note(Code.TRACKER_DISAGREES, f"no tracker file: {then}", path=TRACKER)]
    except OSError as error:
        return None, [unreadable(TRACKER, error)]
    except ParseError as error:
        return None, [note(Code.TRACKER_DISAGREES, f"{error}: with resume_mode=auto verl stops here", path=TRACKER)]
    name = folder_of(step)
    tracked = tracked_in(storage, TRACKER, name, step)
    if name in names:
        return tracked, []
    message = f"the tracker names {name}, which is not there: with resume_mode=auto verl begins from scratch"
    # Nothing is saved before the first step: a 0 was written by somebody, and tells nothing of the training's course.
    return tracked if step else None, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]
