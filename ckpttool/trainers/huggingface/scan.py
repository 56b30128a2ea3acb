"""List `checkpoint-N/` folders, and read `trainer_state.json` in each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, damage, in_order, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, Step, counted
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.core.storage.base import LostLinkError, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import by_rank, listed_damage, one_run, stray, tracked_by
from ckpttool.trainers.hf_saves import WEIGHTS
from ckpttool.trainers.hf_saves.save_folder import (
    NamePattern,
    SaveFolder,
    absent_parts,
    file_names,
    list_save,
)
from ckpttool.trainers.huggingface import (
    ARGUMENTS,
    MODEL_CONFIG,
    SAVE,
    STATE,
    TRAINER,
    UNFINISHED,
    number_in,
    saves_called_otherwise,
)
from ckpttool.trainers.huggingface.inner_tag import inner_tag
from ckpttool.trainers.huggingface.record import (
    Arguments,
    ArgumentsReader,
    Log,
    State,
    global_batch,
    logs_contradict,
    read_ends_of_state,
    read_state,
)
from ckpttool.trainers.listing import Listing

_CONFIG_LIMIT = 16 << 20
_OLDER = "resume from an older checkpoint; if a save is in progress, wait for it"
_SAME_PACE = 0.02
"""Allowed relative difference in steps per epoch.

An epoch's last batch may be smaller; twice the ranks would halve the steps.
"""

_NAMED = file_names(
    NamePattern(WEIGHTS, ShardRole.MODEL),
    NamePattern(r"optimizer\.(?:pt|bin)", ShardRole.OPTIMIZER),
    NamePattern(r"(?:scheduler|scaler)\.pt", ShardRole.STATE),
    NamePattern(r"rng_state(?P<rank>)\.pth", ShardRole.STATE),
    NamePattern(r"rng_state_(?P<rank>[0-9]{1,9})\.pth", ShardRole.STATE),
)


class _Scanned(NamedTuple):
    """A save, with facts to compare across saves."""

    checkpoint: Checkpoint
    confirmed: bool
    """Whether evidence other than the ranks' own files shows the number of ranks."""
    pace: float | None
    """Optimizer steps per epoch; None if unknown."""
    losses: dict[int, float]
    """The first losses in its record, by step."""
    logged_to: int | None
    """The last step that the known part of the log covers; None if no step is known."""
    best: str | None
    """The save with the best metric so far, according to the state."""
    log: Log | None
    """Place of the save's complete log; None if unknown."""
    is_read: bool
    """Whether the complete log was read."""


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with their files and records.

    Args:
        storage: The tree.
        listing: The names in its root.
        options: Data to collect in addition to the names.
    """
    names = [name for name in listing.folders("checkpoint-") if re.fullmatch(SAVE, name)]
    names += [] if names else saves_called_otherwise(listing, every=True)
    arguments_of = ArgumentsReader(storage)
    scanned_saves = list(map_waiting(lambda name: _scan_save(storage, name, arguments_of, options), names))
    scanned_saves = _of_two_runs(scanned_saves)
    newest = max(scanned_saves, key=lambda scanned: scanned.checkpoint.step or 0, default=None)
    best = None if newest is None or newest.best is None else newest.best.rstrip("/").rpartition("/")[2]
    checkpoints = tracked_by(sorted(_with_peers(scanned_saves), key=lambda save: (save.step or 0, save.name)), best)
    known_names = set(names)
    strays = [entry.name for entry in listing.entries if "checkpoint" in entry.name and entry.name not in known_names]
    return Inventory(
        root=storage.root,
        layout=TRAINER.layout_names[0],
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order(map(stray, strays)),
        strays=tuple(strays),
    )


def _scan_save(storage: Storage, name: str, arguments_of: ArgumentsReader, options: ScanOptions) -> _Scanned:
    save = list_save(storage, name, _NAMED, sizes=options.sizes)
    tag = inner_tag(storage, save, sizes=options.sizes)
    if tag is not None and save.expected is not None:
        shards = by_rank((*save.shards, *tag.shards))
        paths = tuple(sorted({*save.expected, *(shard.path for shard in tag.shards)}))
        save = save._replace(shards=shards, expected=paths, findings=(*save.findings, *tag.findings))
    findings = list(save.findings)
    state, commit = _state(storage, save, findings) if save.is_listed else (None, CommitState.UNKNOWN)
    arguments = arguments_of(save.path(ARGUMENTS)) if ARGUMENTS in save.names else Arguments()
    if save.is_listed:
        findings += (*_what_is_lacking(save, has_tag=tag is not None), *absent_parts(save))
    number = number_in(name)
    if state is not None and number is not None and state.step != number:
        message = f"{STATE} says step {state.step}, the folder's name says {number}"
        findings.append(listed_damage(Code.STEP_DISAGREES, message, save.path(STATE)))
    world = _world(save, arguments)
    findings += _absent_ranks(save, world)
    checkpoint = Checkpoint(
        name=name,
        facts=(
            ("epoch", None if state is None or state.epoch is None else int(state.epoch)),
            ("optimizer_step", None if state is None else state.step),
        ),
        scalars=Scalars(
            step=None if state is None else state.step, global_batch_size=global_batch(state, arguments, world)
        ),
        step=_step(state, number),
        step_source=_source(state, number),
        shards=save.shards,
        topology=Topology(world_size=world, shared=world is None),
        format=save.format,
        expected=save.expected,
        commit=commit,
        content=_content(save) if commit is CommitState.COMMITTED else Content.UNKNOWN,
        findings=tuple(findings),
    )
    pace = state.step / state.epoch if state is not None and state.epoch else None
    return _Scanned(
        checkpoint,
        confirmed=arguments.world is not None,
        pace=pace,
        losses={} if state is None else dict(state.losses),
        logged_to=_logged_to(state),
        best=None if state is None else state.best,
        log=None if state is None or state.log is None else Log(storage, save.path(STATE), *state.log),
        is_read=state is not None and state.is_whole_log,
    )


def _logged_to(state: State | None) -> int | None:
    if state is not None and state.is_whole_log:
        return state.step
    return None if state is None else max(dict(state.losses), default=None)


def _step(state: State | None, number: int | None) -> Step | None:
    saved_step = number if state is None else state.step
    return None if saved_step is None else Step(saved_step)


def _source(state: State | None, number: int | None) -> StepSource:
    if state is not None:
        return StepSource.CONTENT
    return StepSource.UNKNOWN if number is None else StepSource.NAME


def _of_two_runs(scanned_saves: list[_Scanned]) -> list[_Scanned]:
    """Report all saves as unknown if the logs of two contradict each other.

    A resumed run does not change earlier entries.
    """
    logged = sorted(
        (scanned for scanned in scanned_saves if scanned.logged_to is not None),
        key=lambda scanned: scanned.checkpoint.step or 0,
    )
    pairs = (*pairwise(logged), *((logged[0], scanned) for scanned in logged[2:]))
    differing = next((pair for pair in pairs if _contradict(*pair)), None) or _apart_later(logged)
    if differing is None:
        return scanned_saves
    first, two = (scanned.checkpoint.name for scanned in differing)
    fact = f"the logs in {first} and {two} contradict each other"
    message = f"{fact}: two runs saved here, and nothing shows which one to resume"
    remedy = "move one run's checkpoints to another folder, or name the checkpoint with --checkpoint"
    return [
        scanned._replace(
            checkpoint=replace(
                scanned.checkpoint,
                findings=(
                    *scanned.checkpoint.findings,
                    unknown(Code.RUN_MIXED, message, path=scanned.checkpoint.name, remedy=remedy, fact=fact),
                ),
            )
        )
        for scanned in scanned_saves
    ]


def _contradict(scanned: _Scanned, later: _Scanned) -> bool:
    """Return whether the parts of the logs that were read have different losses or different steps."""
    end = min(scanned.logged_to or 0, max(later.losses, default=0))
    unequal = {step for step, _ in scanned.losses.items() ^ later.losses.items() if step <= end}
    pairs = ((scanned.losses.get(step, 0.0), later.losses.get(step, 0.0)) for step in unequal)
    return any(not math.isnan(mine) and not math.isnan(theirs) for mine, theirs in pairs)


def _apart_later(logged: Sequence[_Scanned]) -> tuple[_Scanned, _Scanned] | None:
    """Return two saves with logs that differ after the part that a scan reads; None if no logs differ."""
    pairs = [(earlier, later) for earlier, later in pairwise(logged) if not (earlier.is_read and later.is_read)]
    parted = map_waiting(lambda pair: _part(*pair), pairs)
    return next((pair for pair, is_parted in zip(pairs, parted, strict=True) if is_parted), None)


def _part(scanned: _Scanned, later: _Scanned) -> bool:
    if scanned.log is None or later.log is None:
        return False
    try:
        return logs_contradict(scanned.log, later.log, until=scanned.checkpoint.step or 0)
    except OSError:  # reported by its own check
        return False


def _state(storage: Storage, save: SaveFolder, findings: list[Finding]) -> tuple[State | None, CommitState]:
    """Read the record, which is written last, and add its problems to the findings."""
    path = save.path(STATE)
    if UNFINISHED in save.names:
        message = (
            f"{UNFINISHED} is there, which transformers removes when a save on SIGTERM is complete: the save was "
            "interrupted"
        )
        findings.append(listed_damage(Code.UNCOMMITTED_SAVE, message, save.path(UNFINISHED), remedy=_OLDER))
        return None, CommitState.UNCOMMITTED
    try:
        return read_ends_of_state(storage, path), CommitState.COMMITTED
    except FileNotFoundError as error:
        if isinstance(error, LostLinkError):
            findings.append(unreadable(path, error))
            return None, CommitState.UNKNOWN
        message = f"no {STATE}, which is written last: the save is not complete, and resuming from it fails"
        findings.append(listed_damage(Code.UNCOMMITTED_SAVE, message, save.name, remedy=_OLDER))
        return None, CommitState.UNCOMMITTED
    except OSError as error:
        findings.append(unreadable(path, error))
        return None, CommitState.UNKNOWN
    except ParseError as error:
        findings.append(listed_damage(Code.META_UNREADABLE, error.within(path), path))
        return None, CommitState.UNCOMMITTED


def with_complete_state(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Add findings about the middle of a save's record.

    A scan reads only the two ends of the record.

    Raises:
        OSError: The disk could not be read.
    """
    if checkpoint.commit is not CommitState.COMMITTED:
        return checkpoint
    path = f"{checkpoint.name}/{STATE}"
    try:
        read_state(storage, path)
    except ParseError as error:
        torn = listed_damage(Code.META_UNREADABLE, error.within(path), path)
        return replace(checkpoint, commit=CommitState.UNCOMMITTED, findings=(*checkpoint.findings, torn))
    return checkpoint


def with_model_config(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Add findings about the model's config.

    Trainer reads this config before the weights.

    Raises:
        OSError: The disk could not be read.
    """
    path = f"{checkpoint.name}/{MODEL_CONFIG}"
    try:
        parse_object(storage.small_file(path, limit=_CONFIG_LIMIT), where=path, nonfinite=True)
    except FileNotFoundError:
        return checkpoint  # an adapter has no config, and Trainer does not need it
    except ParseError as error:
        torn = listed_damage(Code.META_UNREADABLE, f"{error.within(path)}: Trainer reads it first and stops", path)
        return replace(checkpoint, findings=(*checkpoint.findings, torn))
    return checkpoint


def _content(save: SaveFolder) -> Content:
    """Return whether a save has only weights, as with `save_only_model`.

    A load of such a save silently starts a new optimizer.
    """
    if save.has(ShardRole.OPTIMIZER) or save.has(ShardRole.STATE):
        return Content.FULL
    return Content.WEIGHTS_ONLY if save.shards else Content.UNKNOWN


def _what_is_lacking(save: SaveFolder, *, has_tag: bool) -> Iterator[Finding]:
    """Report missing files that every save has, or that always occur together except with `save_only_model`.

    DeepSpeed's tag contains the weights and the optimizer, and often the schedule.
    """
    if has_tag:
        return
    if not save.has(ShardRole.MODEL) and not any(name.endswith(".index.json") for name in save.names):
        yield listed_damage(Code.SHARD_MISSING, "this folder has no weights", save.name)
    presence = {
        "optimizer.pt": save.has(ShardRole.OPTIMIZER),
        "scheduler.pt": "scheduler.pt" in save.names,
        next((name for name in sorted(save.names) if name.startswith("rng_state")), "rng_state.pth"): bool(save.ranks),
    }
    if any(presence.values()):
        companions = " and ".join(file for file, is_there in presence.items() if is_there)
        for file in (file for file, is_there in presence.items() if not is_there):
            message = (
                f"{file} is missing, but not {companions}: if loaded, this part of the training would be "
                "re-initialized without a warning"
            )
            yield listed_damage(Code.SHARD_MISSING, message, save.path(file))


def _world(save: SaveFolder, arguments: Arguments) -> int | None:
    """Return the number of ranks that must have a file; None if no rank has one, because all load the same files.

    A run with one rank names its file differently, so a number in a name shows that there are at least two ranks.
    """
    if not save.ranks:
        return None
    if save.ranks == {0} and "rng_state.pth" in save.names:
        return 1
    return arguments.world or max(2, max(save.ranks) + 1)


def _absent_ranks(save: SaveFolder, world: int | None) -> Iterator[Finding]:
    absent = sorted(set(range(world or 0)) - save.ranks)
    if absent:
        yield damage(
            Code.SHARD_MISSING,
            f"{counted(len(absent), 'rank')} of {world} without random-number state: if loaded, it would be "
            "re-initialized without a warning",
            path=save.path(f"rng_state_{absent[0]}.pth"),
            remedy="restore it from a copy, or resume from another checkpoint; if new random numbers are acceptable, "
            "name this one to the trainer yourself",
            ranks=tuple(map(Rank, absent)),
        )


def _with_peers(scanned_saves: Sequence[_Scanned]) -> Iterator[Checkpoint]:
    """Mark a save with fewer ranks than another save as suspect, unless its steps per epoch confirm the number."""
    most = max(scanned_saves, key=lambda scanned: scanned.checkpoint.topology.world_size or 0, default=None)
    for scanned in scanned_saves:
        world = scanned.checkpoint.topology.world_size
        if most is None or scanned.confirmed or world is None or world == most.checkpoint.topology.world_size:
            yield scanned.checkpoint
        elif scanned.pace is None or most.pace is None or math.isclose(scanned.pace, most.pace, rel_tol=_SAME_PACE):
            message = (
                f"files of {counted(world, 'rank')}, but {most.checkpoint.name} has those of "
                f"{most.checkpoint.topology.world_size}, and nothing shows that the run became smaller"
            )
            remedy = "look for the other ranks' rng_state files, or resume from another checkpoint"
            warning = suspect(Code.RANK_MISSING, message, path=scanned.checkpoint.name, remedy=remedy)
            yield replace(scanned.checkpoint, findings=(*scanned.checkpoint.findings, warning))
        else:
            yield scanned.checkpoint
