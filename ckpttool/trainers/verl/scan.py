"""List `global_step_*/` folders with the files of all roles, and read the tracker next to them."""

from __future__ import annotations

import math
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    NamedStep,
    StepSource,
    Topology,
    Tracked,
)
from ckpttool.core.domain.finding import Code, Finding, in_order, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, STEP_DIGITS, Step, counted
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.listed import (
    one_run,
    stamped,
    stray,
)
from ckpttool.trainers.common.saved_values import count_at, first_value
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.loader_states.torchdata import batches_in, samples_in
from ckpttool.trainers.verl import (
    DATA,
    DATA_OF_FIRST_RANK,
    DATA_OF_RANK,
    OWN_ROLE,
    ROLES,
    TRAINER,
    folder_of,
    holds_a_model,
    is_data,
    step_of,
)
from ckpttool.trainers.verl.roles import RoleFolder, is_role, look_at_role, state_shard
from ckpttool.trainers.verl.tracker import read_tracker

_LOADER_LIMIT = 1 << 20
"""Maximum bytes of a loader's state to compare; a real state has about 2,000."""
_MOST_PARAMETERS = 4
"""Number of parameters whose optimizer steps are read.

All trained parameters have nearly the same number.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """A save, judged by its names."""

    name: str
    roles: tuple[RoleFolder, ...]
    data: tuple[Shard, ...]
    findings: tuple[Finding, ...]

    @property
    def models(self) -> set[str]:
        """Names of the models that have a folder, intact or not."""
        return {role.name for role in self.roles}

    @property
    def is_fine_tuning(self) -> bool:
        """Whether the SFT trainer wrote the save."""
        return any(role.name == OWN_ROLE for role in self.roles)


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with the states of their data loaders; without a tracker, also with their numbers of updates.

    Args:
        storage: The tree.
        listing: The names in its root.
        options: Data to collect in addition to the names.
    """
    saves = (name for name in listing.folders() if step_of(name) is not None)
    names = sorted(saves, key=lambda name: (step_of(name) or 0, name))
    looked_at = list(map_waiting(lambda name: _scan_save(storage, name, options), names))
    # It is written last, and never by asynchronous saves, so it proves nothing about a save.
    start = "with resume_mode=auto verl"
    tracked, trouble = read_tracker(storage, TRACKER, names, start=start, without_save="starts from scratch")
    emptied = _emptied(looked_at, tracked)
    seen_saves = [save for save in looked_at if save.name not in emptied]
    checkpoints = [_checkpoint(storage, save, seen_saves) for save in seen_saves]
    counts = _batches(storage, checkpoints)
    checkpoints = _with_identities(storage, checkpoints, counts)
    known_names = {TRACKER, OWN_FOLDER, *names}
    strays = tuple(entry.name for entry in listing.entries if entry.name not in known_names)
    if tracked is not None:  # times show whether saves that it does not cover are older or newer
        checkpoints = [
            stamped(storage, save) if (save.step or 0) > (tracked.step or 0) else save for save in checkpoints
        ]
    checkpoints = list(_confirmed(checkpoints, counts, tracked))
    checkpoints = list(_with_exchanged_names(checkpoints, counts))
    last = 0 if tracked is None else tracked.step or 0
    if any((save.step or 0) > last for save in checkpoints):
        updates = _updates(storage, checkpoints)
        checkpoints = list(_with_other_updates(checkpoints, counts, updates, last=last))
        if tracked is None:
            trouble += _named_only(checkpoints, counts, updates)
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *(_left_over(*removed) for removed in emptied.items()), *trouble)),
        strays=(*strays, *emptied),
        tracked=tracked,
    )


def _confirmed(saves: Sequence[Checkpoint], counts: Mapping[str, int], tracked: Tracked | None) -> Iterator[Checkpoint]:
    """Yield the saves, with a finding for each number beyond the tracker that nothing confirms.

    The loader's batch count or the order of the saves can confirm a number. Without a tracker, the lowest number counts
    as correct, unless that save's own count contradicts it.
    """
    named_step = None if tracked is None else tracked.step or 0
    beyond = [save for save in saves if named_step is None or (save.step or 0) > named_step]
    if named_step is None and _has_several_a_step(saves, counts):
        counts = {}
    if not beyond or (named_step is None and len(saves) <= (1 if counts else 2)):  # two numbers alone prove nothing
        yield from saves
        return
    lower = [save for save in saves if save not in beyond]
    steps = sorted({*(() if named_step is None else (named_step,)), *((save.step or 0) for save in lower)})
    count_by_step = {save.step or 0: counts[save.name] for save in lower if save.name in counts}
    is_first_epoch = any(counts.get(save.name) == save.step for save in beyond)
    for save in saves:
        step, count = save.step or 0, counts.get(save.name)
        if save not in beyond:
            yield save
            continue
        is_lowest = not steps and (count in {None, step} or not is_first_epoch)
        if is_lowest or (steps and _is_confirmed(step, count, steps, count_by_step)):
            steps.append(step)
            if named_step is None and count is not None:
                count_by_step[step] = count
            yield save
        else:
            yield replace(save, findings=(*save.findings, _unconfirmed(save, named_step, count)))


def _has_several_a_step(saves: Iterable[Checkpoint], counts: Mapping[str, int]) -> bool:
    """Return whether each step takes several batches, for example to filter them.

    Batch counts are then not steps.
    """
    pairs = [((save.step or 0), counts[save.name]) for save in saves if save.name in counts]
    return any(count > step for step, count in pairs) and all(count != step for step, count in pairs)


def _with_exchanged_names(saves: Sequence[Checkpoint], counts: Mapping[str, int]) -> Iterator[Checkpoint]:
    """Yield the saves, with findings for saves whose names were swapped.

    Each of these saves has a different save's batch count.
    """
    exchanged = _exchanged({save.step or 0: counts[save.name] for save in saves if save.name in counts})
    for save in saves:
        step = save.step or 0
        is_doubted = any(finding.code is Code.STEP_DISAGREES for finding in save.findings)
        if step not in exchanged or is_doubted:
            yield save
            continue
        batches = counted(counts[save.name], "batch", "batches")
        fact = (
            f"its name says step {step}, but {save.name}/{DATA} counts {batches} in its epoch, as "
            f"{folder_of(Step(exchanged[step]))} should"
        )
        message = f"{fact}: the names of saves were swapped"
        remedy = f"rename each folder to the step of its content; --checkpoint {save.name} loads it as it is"
        warning = unknown(Code.STEP_DISAGREES, message, path=save.name, remedy=remedy, fact=fact)
        yield replace(save, findings=(*save.findings, warning))


def _exchanged(counts: Mapping[int, int]) -> dict[int, int]:
    """Return saves with swapped names: the step that each save counts, by the step in its name.

    The batch counts of such saves form a cycle. With one batch per step, a step minus its count is the number of
    batches in earlier epochs, which is a multiple of the batches per epoch. No such number leads from one correctly
    named save to another.

    Args:
        counts: Number of batches that each save had read in its epoch, by the step in its name.
    """
    swaps: dict[int, int] = {}
    for before in {0, *(step - count for step, count in counts.items() if step > count)}:
        by_step = {step: before + count for step, count in counts.items()}
        for start in by_step:
            circle = [start]
            while (next_step := by_step.get(circle[-1], start)) not in circle:
                circle.append(next_step)
            if len(circle) > 1 and by_step.get(circle[-1]) == start:
                swaps.update((step, by_step[step]) for step in circle)
    return swaps


def _with_other_updates(
    saves: Sequence[Checkpoint], counts: Mapping[str, int], updates: Mapping[str, int], *, last: int
) -> Iterator[Checkpoint]:
    """Yield the saves, with a finding for each save that counts a different number of updates.

    A run that started with a different run's weights, or that trains only its critic at first, counts fewer in all of
    its saves, by the same number. Several updates per step are usual.

    Args:
        saves: All saves, by step.
        counts: Number of batches that each save had read in its epoch, by its name.
        updates: Number of updates that each save counts, by its name.
        last: The step that the tracker confirms, with all before; 0 if there is no tracker.
    """
    lags = Counter((save.step or 0) - updates[save.name] for save in saves if save.name in updates)
    most = 0
    for save in saves:
        step, count, made = save.step or 0, counts.get(save.name), updates.get(save.name, 0)
        is_doubted = any(finding.code is Code.STEP_DISAGREES for finding in save.findings)
        is_confirmed = not made or step in {made, count} or step <= last
        is_behind = made < max(step, most) and lags[step - made] == 1
        if is_doubted or is_confirmed or not (is_behind or made == count):
            most = most if is_doubted else max(most, made)
            yield save
        else:
            yield replace(save, findings=(*save.findings, _other_updates(save, count, made)))


def _other_updates(save: Checkpoint, count: int | None, made: int) -> Finding:
    batches = "" if count is None else f" and {counted(count, 'batch', 'batches')} in its epoch"
    message = (
        f"only its name says step {save.step}, but no tracker confirms it, and {save.name} counts "
        f"{counted(made, 'update')} of its weights{batches}"
    )
    return unknown(Code.STEP_DISAGREES, message, path=save.name, remedy=_rename(save))


def _named_only(
    saves: Sequence[Checkpoint], counts: Mapping[str, int], updates: Mapping[str, int]
) -> Iterator[Finding]:
    """Report if only the name shows the step of the newest save that is not suspicious."""
    believed = [save for save in saves if all(finding.code is not Code.STEP_DISAGREES for finding in save.findings)]
    for save in believed[-1:]:
        if save.step not in {counts.get(save.name), updates.get(save.name)}:
            message = f"only its name says step {save.step}: no tracker, batch count or update count confirms it"
            yield note(Code.STEP_UNKNOWN, message, path=save.name)


def _unconfirmed(save: Checkpoint, named_step: int | None, count: int | None) -> Finding:
    tracker = "no tracker confirms it" if named_step is None else f"the tracker says {named_step}"
    batches = "" if count is None else counted(count, "batch", "batches")
    read = f", {save.name}/{DATA} counts {batches} in its epoch" if batches else ""
    message = (
        f"only its name says step {save.step}, but {tracker}{read}, and it does not fit the numbers of the other saves"
    )
    return unknown(Code.STEP_DISAGREES, message, path=save.name, remedy=_rename(save))


def _rename(save: Checkpoint) -> str:
    return (
        f"--checkpoint {save.name} loads it; rename the folder to the step of its content, or move it out of the tree"
    )


def _batches(storage: Storage, saves: Sequence[Checkpoint]) -> dict[str, int]:
    """Read the number of batches in its epoch that each save's data loader counts, by the save's name."""
    read = map_waiting(lambda save: batches_in(first_value(storage, [_loader_path(save)])), saves)
    return {save.name: count for save, count in zip(saves, read, strict=True) if count is not None}


def _updates(storage: Storage, saves: Sequence[Checkpoint]) -> dict[str, int]:
    """Read the number of updates that each save counts, by the save's name.

    The highest number over its models is used.
    """
    read = map_waiting(lambda save: max(_updates_of_roles(storage, save), default=0), saves)
    return {save.name: made for save, made in zip(saves, read, strict=True) if made}


def _updates_of_roles(storage: Storage, save: Checkpoint) -> Iterator[int]:
    """Yield the count of each model's schedule, from one rank's file.

    Without a schedule, yield the optimizer's count.
    """
    paths: dict[tuple[str, ShardRole], str] = {}
    for shard in save.shards:
        if shard.rank is not None:
            paths.setdefault((posixpath.dirname(shard.path), shard.role), shard.path)
    for folder in sorted({folder for folder, _ in paths}):
        state, optimizer = (paths.get((folder, role)) for role in (ShardRole.STATE, ShardRole.OPTIMIZER))
        scheduled = None if state is None else count_at(first_value(storage, [state]), "lr_scheduler", "last_epoch")
        if scheduled is not None:
            yield scheduled
        elif optimizer is not None:
            yield from _steps_of(storage, optimizer)


def _steps_of(storage: Storage, path: str) -> list[int]:
    """Return the number of steps that an optimizer has made with some of its parameters."""
    from ckpttool.core.formats.scalars import read_single
    from ckpttool.core.formats.torch.contents import torch_contents
    from ckpttool.core.formats.torch.zip_directory import read_zip_directory

    try:
        with storage.open(path) as source:
            directory = read_zip_directory(source)
            contents = torch_contents(source, directory.entries if directory.verifiable else ())
            steps = [entry for entry in contents.entries if entry.name.endswith(".step")]
            values = read_single(source, steps[:_MOST_PARAMETERS])
    except OSError:  # reported by the check of every file
        return []
    return [int(value) for _, value in values if isinstance(value, (int, float)) and 0 <= value < 10**STEP_DIGITS]


def _is_confirmed(step: int, count: int | None, steps: Sequence[int], counts: Mapping[int, int]) -> bool:
    """Return whether a number beyond the tracker belongs to the next save, or agrees with the batches read.

    Args:
        step: The step in the save's name.
        count: Number of batches read in the save's epoch; None if unknown.
        steps: Steps of the saves before this save, ascending.
        counts: The number of batches that those saves had read, by step.
    """
    gap = step - steps[-1]
    is_next = any(after - before == gap for before, after in pairwise(steps)) or not any(step_ % gap for step_ in steps)
    if count is None or count == step:
        return is_next or count == step
    epochs = step - count
    earlier = math.gcd(*(step_ - batches for step_, batches in counts.items()))
    if epochs < 0 or math.gcd(earlier, epochs) < max(count, *counts.values(), 1):
        return False
    if earlier:
        return is_next or epochs % earlier == 0
    may_be_renamed = count % gap == 0 and count not in steps  # the missing save's number
    return is_next and not may_be_renamed


def _emptied(saves: Sequence[_Save], tracked: Tracked | None) -> dict[str, list[str]]:
    """Return the folders from which verl's own retention removed models, each with the names of these models.

    At least one newer save still has all models.

    Source: `max_actor_ckpt_to_keep` and `max_critic_ckpt_to_keep`, which delete `actor/` or `critic/`, and keep the
    rest of the save.
    """
    models = {role.name for save in saves for role in save.roles if role.kinds}
    last = max((index for index, save in enumerate(saves) if save.models >= models), default=0)
    named = None if tracked is None else tracked.name
    return {
        save.name: sorted(models - save.models)
        for save in saves[:last]
        if save.data and not save.findings and save.models < models and save.name != named
    }


def _left_over(name: str, models: Sequence[str]) -> Finding:
    removed = " and ".join(f"{model}/" if model else "the model" for model in models)
    message = f"{removed} was deleted and the rest remains, as after verl's own retention: not a checkpoint"
    return note(Code.STRAY_FILE, message, path=name)


def _scan_save(storage: Storage, name: str, options: ScanOptions) -> _Save:
    try:
        entries = {entry.name: entry.kind for entry in storage.entries(name)}
    except OSError as error:
        return _Save(name=name, roles=(), data=(), findings=(unreadable(name, error),))
    roles = [OWN_ROLE] if holds_a_model(entries) else []
    roles += [role for role in sorted(entries) if is_role(storage, name, role, entries[role], ROLES)]
    data = [
        state_shard(storage, f"{name}/{data_file}", None, ShardRole.STATE, options)
        for data_file in sorted(filter(is_data, entries))
    ]
    # The companions of a model's files are deleted with them: its config and its tokenizer.
    strays = [] if OWN_ROLE in roles else sorted(entries.keys() - {*roles, *filter(is_data, entries), MANIFEST_NAME})
    return _Save(
        name=name,
        roles=tuple(look_at_role(storage, name, role, options) for role in roles),
        data=tuple(data),
        findings=tuple(stray(f"{name}/{stray_name}") for stray_name in strays),
    )


def _checkpoint(storage: Storage, save: _Save, saves: Sequence[_Save]) -> Checkpoint:
    step = step_of(save.name)
    kinds = {role.name: _kinds(saves, role.name) for role in save.roles}
    findings = (*save.findings, *(finding for role in save.roles for finding in role.findings), *_lacks(save, saves))
    worlds = {role.world for role in save.roles if role.world is not None}
    shards = (*(shard for role in save.roles for shard in role.shards), *save.data)
    return Checkpoint(
        name=save.name,
        scalars=Scalars(step=step),
        step=step,
        step_source=StepSource.NAME,
        named=None if step is None else NamedStep(stem="global_step_", number=step),
        shards=tuple(sorted(shards, key=lambda shard: (shard.rank or 0, shard.path))),
        topology=Topology(world_size=max(worlds) if worlds else None),
        format=FormatName.TORCH_ZIP,
        expected=(
            *(
                f"{role.path}/{kind}_world_size_{role.world}_rank_{rank}.pt"
                for role in save.roles
                for kind in sorted(kinds[role.name])
                for rank in range(role.world or 0)
            ),
            *_loaders(storage, save, saves),
        ),
        commit=CommitState.UNRECORDED,
        content=_content(frozenset().union(*kinds.values())),
        findings=findings,
    )


def _with_identities(storage: Storage, checkpoints: list[Checkpoint], counts: Mapping[str, int]) -> list[Checkpoint]:
    """Read identities to detect copies, if the loaders of two saves have equal positions, or unknown positions."""
    by_digest: dict[bytes | None, list[Checkpoint]] = defaultdict(list)
    for save, state in zip(checkpoints, map_waiting(partial(_loader_state, storage), checkpoints), strict=True):
        by_digest[state].append(save)
    doubtful = {save.name for group in by_digest.values() if len(group) > 1 for save in group}
    if not doubtful:
        return checkpoints
    # Each epoch counts its batches from 0, but the updates of the weights are counted over all epochs.
    orders = _updates(storage, checkpoints) or counts
    return [
        replace(
            save,
            order=orders.get(save.name),
            identity=_identity(storage, save) if save.name in doubtful else None,
        )
        for save in checkpoints
    ]


def _loader_state(storage: Storage, save: Checkpoint) -> bytes | None:
    """Return the content of `data.pt`; None if the file does not exist, or is larger than a loader's state can be."""
    try:
        return storage.small_file(_loader_path(save), limit=_LOADER_LIMIT)
    except OSError:  # reported by the check of every file
        return None


def _loader_path(save: Checkpoint) -> str:
    paths = (shard.path for shard in save.shards if is_data(posixpath.basename(shard.path)))
    return min(paths, default=f"{save.name}/{DATA}")


def _identity(storage: Storage, save: Checkpoint) -> str | None:
    """Return the checksums inside one rank's files; None if a file with weights has no checksums.

    An actor that is not trained yet is equal in all saves, but the files next to it are not.
    """
    models = [shard for shard in save.shards if shard.role is ShardRole.MODEL]
    own_shards = [shard for shard in save.shards if models and shard.rank == models[0].rank]
    checksums = [_checksums(storage, shard.path) for shard in own_shards]
    return " ".join(filter(None, checksums)) if own_shards and all(checksums) else None


def _checksums(storage: Storage, path: str) -> str | None:
    from ckpttool.core.formats.torch.zip_directory import read_zip_directory

    try:
        with storage.open(path) as source:
            directory = read_zip_directory(source)
    except OSError:
        return None
    return " ".join(f"{entry.crc32:08x}" for entry in directory.entries) if directory.verifiable else None


def _kinds(saves: Sequence[_Save], role: str) -> frozenset[str]:
    """Return the kinds of files that a role has in any save.

    The training run's config decides them for all saves.
    """
    return frozenset(
        kind for save in saves for role_state in save.roles if role_state.name == role for kind in role_state.kinds
    )


def _loaders(storage: Storage, save: _Save, saves: Sequence[_Save]) -> Iterator[str]:
    """Yield the files of all data-parallel ranks' loaders.

    The highest number in saves of equal size shows how many there are, unless the number changed between the saves.
    """
    if not (save.is_fine_tuning and save.data):
        return
    worlds = {role.world for role in save.roles}
    same_world = [
        save_seen
        for save_seen in saves
        if save_seen.is_fine_tuning and {role.world for role in save_seen.roles} == worlds
    ]
    fullest = max(same_world, key=lambda save_seen: len(save_seen.data))
    if len(fullest.data) > len(save.data):
        has_same_number = sum(len(save_seen.data) == len(save.data) for save_seen in same_world) > 1
        if has_same_number or _global_batch(storage, save) == _global_batch(storage, fullest):
            fullest = save
    ranks = [int(match[1]) for path in _paths(fullest.data) if (match := re.search(f"/{DATA_OF_RANK}$", path))]
    if ranks and max(ranks) < MAX_RANKS:
        for rank in range(max(ranks) + 1):
            yield f"{save.name}/data_{rank}.pt"


def _paths(shards: Iterable[Shard]) -> list[str]:
    return [shard.path for shard in shards]


def _global_batch(storage: Storage, save: _Save) -> int | float:
    """Return the samples per step over all loaders that have a state; NaN, which equals nothing, if unknown."""
    state = first_value(storage, _paths(save.data))
    batches, samples = batches_in(state), samples_in(state)
    return math.nan if not batches or samples is None else len(save.data) * samples / batches


def _content(kinds: frozenset[str]) -> Content:
    if not kinds:
        return Content.UNKNOWN
    return Content.FULL if "optim" in kinds else Content.WEIGHTS_ONLY


def _lacks(save: _Save, saves: Sequence[_Save]) -> Iterator[Finding]:
    """Report files that other saves have and this save lacks."""
    elsewhere = {role.name for save_seen in saves for role in save_seen.roles if role.kinds} - {
        role.name for role in save.roles
    }
    for role in sorted(elsewhere):
        place = f"{role}/" if role else "a model's files in their own folder"
        message = f"other saves have {place}, this one does not"
        remedy = "resume from another checkpoint; if a save is in progress, wait for it"
        yield suspect(Code.METADATA_INCOMPLETE, message, path=save.name, remedy=remedy)
    if not save.data:
        name, start = (DATA_OF_FIRST_RANK, "the epoch") if save.is_fine_tuning else (DATA, "the data")
        message = f"there is no {name}, so the position in the data is unknown: verl starts {start} from the beginning"
        yield note(Code.DATA_RESTARTS, message, path=f"{save.name}/{name}")
