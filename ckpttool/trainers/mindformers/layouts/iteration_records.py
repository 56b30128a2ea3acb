"""What the records in an iteration's folder say, and which files there must be by them."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.expectation import (
    Evidence,
    Expectation,
    Expected,
    ExpectedFiles,
    FilesByPath,
    FilesByRank,
    WorldSize,
)
from ckpttool.core.domain.finding import Code, Finding, damage, note, unknown, unsafe
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.replicas import RecordedSlices
from ckpttool.core.domain.shard import Shard, ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.strict_json import (
    MOST_MEMORY,
    ParseError,
    as_list,
    as_object,
    get_int,
    get_object,
    get_optional_float,
    get_optional_int,
    get_str,
    parse_object,
)
from ckpttool.core.storage.base import LOST_LINK_REMEDY, LostLinkError, OverLimitError, Storage
from ckpttool.trainers.common.listed import listed_damage
from ckpttool.trainers.mindformers.scalars import TrainState

_SLICE = r"""(?s:\('(?P<name>.+)', \((?P<slice>[0-9]{1,9},(?: [0-9]{1,9}(?:, [0-9]{1,9})*)?)\)\))"""
"""A key of `storage_data`, as Python spells a pair of a name and the numbers of a slice."""

_MEMORY_A_FILE = 512 << 10
"""With 8,192 ranks the file has some hundred megabytes, most of it numbers: 20 kB for each shard."""

SHARD_NAME = r"(?s:(?P<prefix>(?!\._).+)-)?(?P<role>model|opt)-(?P<rank>[0-9]{7})-(?P<world>[0-9]{7})\.safetensors"

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class _Parse(Protocol[_T_co]):
    """Parses a metadata.json."""

    def __call__(self, data: bytes, *, what: str, most_memory: int = MOST_MEMORY) -> _T_co:
        """Raise a ParseError with the file and the key that is wrong."""
        ...


COMMON_LIMIT = 64 * 1024
METADATA_LIMIT = 1 << 30
"""Bytes. A real one has about 9 KB for 4 ranks and 12 tensors, so some hundred MB for the largest models."""
_SMALL_METADATA = 256 << 10
_LARGE_METADATA = threading.Lock()
"""Held while one that is not small is in memory: many iterations are read at the same time."""

_RESTORE = "restore it from the disk that the rank saved to, or resume from an older checkpoint"

_NEEDED = ("step_num", "epoch_num", "global_step", "global_batch_size")
"""Scalars of common.json that MindFormers multiplies and divides at a resume."""


class CommonRecord(NamedTuple):
    """Training state that all ranks share."""

    state: TrainState
    health: Health
    """`ckpt_status` 0 is healthy, 1 is not; absent or null: the monitor was off, so nothing is known."""


_HEALTH = {0: Health.HEALTHY, 1: Health.UNHEALTHY, None: Health.UNKNOWN}


def parse_common(data: bytes, *, what: str) -> CommonRecord:
    """Parse a common.json; fields of other versions are ignored.

    Raises:
        ParseError: With the file and the key that is wrong.
    """
    record = parse_object(data, where=what)
    health = _HEALTH.get(get_optional_int(record, "ckpt_status", where=what), Health.UNKNOWN)
    state = TrainState(
        epoch_num=get_optional_int(record, "epoch_num", where=what),
        step_num=get_optional_int(record, "step_num", where=what),
        global_step=get_optional_int(record, "global_step", where=what),
        loss_scale=get_optional_float(record, "loss_scale", where=what),
        global_batch_size=get_optional_int(record, "global_batch_size", where=what),
        consumed_samples=get_optional_int(record, "consumed_samples", where=what),
    )
    return CommonRecord(state=state, health=health)


def metadata_memory(files: int) -> int:
    """Return what the values of a metadata.json may take: it tells of every slice of every rank.

    Args:
        files: In the same folder. Whoever wants us to take much memory has to make as many.
    """
    return MOST_MEMORY + files * _MEMORY_A_FILE


def parse_metadata_files(data: bytes, *, what: str, most_memory: int = MOST_MEMORY) -> frozenset[str]:
    """Return the names of all files that a metadata.json says belong to its checkpoint.

    Args:
        data: The whole file.
        what: Names the file in the error.
        most_memory: As `metadata_memory` gives it.

    Raises:
        ParseError: With the file and the key that is wrong.
    """
    storage = get_object(parse_object(data, where=what, most_memory=most_memory), "storage_data", where=what)
    return frozenset(
        get_str(as_object(place, where=what, key=key), "file_name", where=f"{what}: {key}")
        for key, places in storage.items()
        for place in as_list(places, where=what, key=key)
    )


def read_common(storage: Storage, folder: str, findings: list[Finding]) -> CommonRecord | None:
    """Read common.json; what is wrong with it is added to the findings."""
    path = f"{folder}/common.json"
    try:
        return parse_common(storage.small_file(path, limit=COMMON_LIMIT), what=path)
    except FileNotFoundError:
        message = "no common.json: MindFormers cannot resume without its step and loss scale"
        findings.append(listed_damage(Code.METADATA_INCOMPLETE, message, path))
    except OSError as error:
        findings.append(withheld(path, error))
    except ParseError as error:
        findings.append(listed_damage(Code.META_UNREADABLE, str(error), path))
    return None


def is_pynative(state: TrainState, number: int) -> bool:
    """Tell whether the PyNative trainer wrote a common.json: there `step_num` is how many steps the run was to make.

    Args:
        state: What it says.
        number: In the folder's name.

    Source: `CommonInfo` of MindFormers 1.9.0 to 2.1.0; only that trainer sets `consumed_samples`.
    """
    if state.consumed_samples is not None:
        return True
    return state.step_num not in {None, number} and state.global_step == number


def common_findings(state: TrainState, number: int, path: str, *, pynative: bool) -> list[Finding]:
    """Compare with the folder's name, and find what MindFormers computes with but is null or not there."""
    findings = []
    step = state.global_step if pynative else state.step_num
    if step not in {None, number}:
        findings.append(other_step(step or 0, number, path))
    needed = ("step_num", "global_step") if pynative else _NEEDED
    lacking = [name for name in needed if getattr(state, name) is None]
    if lacking:
        findings.append(
            damage(
                Code.SCALARS_MISSING,
                f"no {', '.join(lacking)}: MindFormers stops with a TypeError",
                path=path,
                remedy="write into it what the run had, or resume from another checkpoint",
            )
        )
    return findings


def other_step(step: int, number: int, path: str) -> Finding:
    """Report that a common.json says another step than its folder's name."""
    return listed_damage(Code.STEP_DISAGREES, f"common.json says step {step}, the folder's name {number}", path)


def _metadata(storage: Storage, path: str, parse: _Parse[_T], *, files: int) -> _T:
    """Read one; large ones one after the other, for many iterations are read at the same time."""
    try:
        return parse(storage.small_file(path, limit=_SMALL_METADATA), what=path)
    except OverLimitError:
        pass
    most = metadata_memory(files)
    with _LARGE_METADATA:
        return parse(storage.small_file(path, limit=min(most // 2, METADATA_LIMIT)), what=path, most_memory=most)


def read_slices(storage: Storage, folder: str, *, files: int) -> RecordedSlices | None:
    """Return which slice of each tensor a rank holds; None where no record tells that may be believed.

    Raises:
        OSError: The disk did not answer.
    """
    path = f"{folder}/metadata.json"
    try:
        return _metadata(storage, path, parse_slices, files=files)
    except (FileNotFoundError, ParseError):
        return None


def parse_slices(data: bytes, *, what: str, most_memory: int = MOST_MEMORY) -> RecordedSlices:
    """Return which slice of each tensor a rank holds by a metadata.json.

    Raises:
        ParseError: As of `parse_metadata_files`.
    """
    storage = get_object(parse_object(data, where=what, most_memory=most_memory), "storage_data", where=what)
    by_tensor: dict[str, dict[Rank, int]] = {}
    for number, (key, places) in enumerate(storage.items()):
        match = re.fullmatch(_SLICE, key)
        if match is None:
            raise ParseError("is no slice of a tensor", where=what, key=key)
        slices = by_tensor.setdefault(match["name"], {})
        for place in as_list(places, where=what, key=key):
            rank = get_int(as_object(place, where=what, key=key), "storage_rank", where=f"{what}: {key}")
            if slices.setdefault(Rank(rank), number) != number:
                raise ParseError(f"rank {rank} holds two slices", where=what, key=key)
    shared: dict[tuple[tuple[Rank, int], ...], dict[Rank, int]] = {}
    return RecordedSlices(source=what, slices={name: _shared(slices, shared) for name, slices in by_tensor.items()})


def _shared(slices: dict[Rank, int], shared: dict[tuple[tuple[Rank, int], ...], dict[Rank, int]]) -> Mapping[Rank, int]:
    """Return an equal mapping, in memory once, with its slices counted from 0: thousands of tensors lie alike."""
    numbers: dict[int, int] = {}
    for rank in sorted(slices):
        slices[rank] = numbers.setdefault(slices[rank], len(numbers))
    return shared.setdefault(tuple(sorted(slices.items())), slices)


def read_metadata(
    storage: Storage, folder: str, world: int | None, findings: list[Finding], *, files: int
) -> tuple[str, ...] | None:
    """Return the paths that metadata.json names; None where it names none that may be followed."""
    path = f"{folder}/metadata.json"
    try:
        names = _metadata(storage, path, parse_metadata_files, files=files)
    except FileNotFoundError:
        if world is not None and world > 1:
            message = f"no metadata.json beside the shards of {world} ranks: the save was not finished"
            findings.append(listed_damage(Code.METADATA_INCOMPLETE, message, path))
        return None
    except OSError as error:
        findings.append(withheld(path, error))
        return None
    except ParseError as error:
        findings.append(listed_damage(Code.META_UNREADABLE, str(error), path))
        return None
    escaping = sorted(name for name in names if re.fullmatch(SHARD_NAME, name) is None or "/" in name)
    if escaping:
        message = f"metadata.json names {escaping[0]!r}, which is no shard of this folder; it is not followed"
        findings.append(unsafe(Code.UNSAFE_NAME, message, path=path))
        return None
    return tuple(f"{folder}/{name}" for name in sorted(names))


def withheld(path: str, error: OSError) -> Finding:
    """Report a part of a save that the disk withholds."""
    message = f"cannot be read ({error.strerror or error}): unknown, not missing"
    remedy = LOST_LINK_REMEDY if isinstance(error, LostLinkError) else None
    return unknown(Code.UNREADABLE, message, path=path, remedy=remedy)


def expected_of_iterations(inventory: Inventory, evidence: Evidence) -> Expected:
    """Say for every save which files it must have: by its record, else each role that the tree knows on each rank."""
    present_roles = {shard.role for checkpoint in inventory.checkpoints for shard in checkpoint.shards}
    roles = {ShardRole.MODEL} if evidence.weights_alone else {ShardRole.MODEL, *present_roles}
    return Expected(
        checkpoints=tuple(_expectation(checkpoint, evidence, roles) for checkpoint in inventory.checkpoints),
        runs=inventory.runs,
    )


def _expectation(checkpoint: Checkpoint, evidence: Evidence, roles: AbstractSet[ShardRole]) -> Expectation:
    """Expect weights, whatever a record says: without them MindFormers would train on from random ones."""
    world = checkpoint.topology.world_size
    files: ExpectedFiles | None = None
    notes = []
    if checkpoint.expected is not None:
        files = FilesByPath(paths=checkpoint.expected, ranks=_ranks_of_paths(checkpoint, checkpoint.expected))
        if world is not None and all(shard.role is not ShardRole.MODEL for shard in checkpoint.shards):
            message = "no rank has a model shard of it, and its own record names none or none that is there"
            notes.append(listed_damage(Code.SHARD_MISSING, message, checkpoint.name, remedy=_RESTORE))
    elif world is not None:
        size = WorldSize(world=world, why=f"the files' names say {world}", remedy=_RESTORE)
        files = FilesByRank(size=size, roles=tuple(roles), absent=partial(_absent, checkpoint.name, size))
    for known_world in evidence.worlds:
        if known_world.declared and world is not None and known_world.world_size != world:
            message = (
                f"saved by {world} ranks, to be loaded by {known_world.world_size} ({known_world.source}): "
                "MindFormers re-slices"
            )
            notes.append(note(Code.WORLD_SIZE_DIFFERS, message))
    return Expectation(files=files, topology=checkpoint.topology, notes=tuple(notes))


def _absent(name: str, size: WorldSize, rank: Rank, role: ShardRole) -> Finding:
    return size.missing(f"rank {rank} has no {role.value} shard of it", Code.SHARD_MISSING, name, [rank])


def path_for(template: Shard, rank: Rank) -> str:
    """Spell the path of one rank's shard, after another's."""
    return template.path.replace(f"-{template.rank:07}-", f"-{rank:07}-")


def _ranks_of_paths(checkpoint: Checkpoint, paths: Collection[str]) -> dict[str, Rank]:
    """Spell the path of every rank's file after those that are there; nothing where all of these are there."""
    if {shard.path for shard in checkpoint.shards}.issuperset(paths):
        return {}
    models = {shard.role: shard for shard in checkpoint.shards if shard.rank is not None}
    return {
        path_for(shard, Rank(rank)): Rank(rank)
        for shard in models.values()
        for rank in range(checkpoint.topology.world_size or 0)
    }
