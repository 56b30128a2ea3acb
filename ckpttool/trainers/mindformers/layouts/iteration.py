"""MindFormers' newer layout (1.7 and later): `iteration_00000030/{prefix}-model-0000000-0000004.safetensors`.

Each save has a folder, shared by all ranks, which also contains the save's records. A tracker file is next to these
folders.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, StepSource, Topology
from ckpttool.core.domain.expectation import (
    Evidence,
    Expectation,
    Expected,
    ExpectedFiles,
    FilesByPath,
    FilesByRank,
    RankFiles,
    WorldSize,
)
from ckpttool.core.domain.finding import Code, Finding, damage, in_order, note, suspect, unknown, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.progress import Progress
from ckpttool.core.domain.replicas import RecordedSlices
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.core.formats.strict_json import (
    MOST_MEMORY,
    JsonObject,
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
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER, SealPlace
from ckpttool.core.storage.base import LOST_LINK_REMEDY, Entry, LostLinkError, OverLimitError, Storage
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.listed import (
    by_rank,
    holds_its_mark,
    in_order_of_progress,
    listed_damage,
    listed_shard,
    one_run,
    stamped,
    stray,
    tracked_in,
)
from ckpttool.trainers.common.tracker_file import tracked_step, tracker_naming, tracker_pointer
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.layouts.names import (
    BESIDE_THE_SAVES,
    ITERATION,
    ITERATION_LAYOUT,
    WRITTEN,
    FileKind,
    iteration_folder,
    iteration_step,
    parse_shape,
    saves_in,
)
from ckpttool.trainers.mindformers.scalars import PLANNED_STEPS, RULES, TrainState, by_pynative

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.domain.pointer import Pointer, PointerText

_MEMORY_A_FILE = 512 << 10
"""Memory per file, in bytes.

With 8,192 ranks, a metadata.json exceeds a hundred megabytes, mostly numbers: 20 kB per shard.
"""

_SHARD_NAME = r"(?s:(?P<prefix>(?!\._).+)-)?(?P<role>model|opt)-(?P<rank>[0-9]{7})-(?P<world>[0-9]{7})\.safetensors"

_T = TypeVar("_T")

COMMON_LIMIT = 64 * 1024
METADATA_LIMIT = 1 << 30
"""Maximum size in bytes.

A real file has about 9 KB for 4 ranks and 12 tensors, so hundreds of MB for the largest models.
"""
_SMALL_METADATA = 256 << 10
_LARGE_METADATA = threading.Lock()
"""Lock for a large file in memory, because many iterations are read at the same time."""

_RESTORE = "restore it from the disk of that rank, or resume from an older checkpoint"

_NEEDED = ("step_num", "epoch_num", "global_step", "global_batch_size")
"""Scalars of common.json that MindFormers multiplies and divides at a resume."""

_ROLES = {"model": ShardRole.MODEL, "opt": ShardRole.OPTIMIZER}
_RECORDS = {*WRITTEN, MANIFEST_NAME}


class MindFormersIteration:
    """A layout with one folder per save, shared by all ranks, and a tracker file next to these folders."""

    name = ITERATION_LAYOUT
    signs = ITERATION
    is_tree = True
    rank_files = RankFiles.TOGETHER

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each iteration's files, and read its common.json and metadata.json; no shard is opened."""
        folders = list(saves_in(listing))
        checkpoints = _same_prefix(list(map_waiting(lambda name: _scan_iteration(storage, name, options), folders)))
        known_names = {TRACKER, OWN_FOLDER, *folders}
        strays = [entry.name for entry in listing.entries if entry.name not in known_names]
        checkpoints = in_order_of_progress(_without_optimizer(_of_one_trainer(checkpoints)))
        tracked, trouble = _tracker(storage, listing, {checkpoint.name for checkpoint in checkpoints})
        checkpoints = _with_times(storage, checkpoints, tracked)
        return Inventory(
            root=storage.root,
            layout=self.name,
            checkpoints=tuple(checkpoints),
            runs=one_run(checkpoints),
            findings=in_order((*map(stray, strays), *trouble)),
            strays=tuple(sorted(strays)),
            tracked=None if tracked is None else tracked_in(storage, TRACKER, tracked, iteration_step(tracked)),
        )

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Add the tensors of each file, if the PyNative trainer wrote the metadata.json."""
        if not by_pynative(checkpoint) or checkpoint.expected is None:
            return checkpoint
        from ckpttool.trainers.mindformers.layouts.entries import entries_in, with_entries

        path = f"{checkpoint.name}/metadata.json"
        try:
            return with_entries(checkpoint, from_metadata(storage, path, entries_in, files=len(checkpoint.shards)))
        except FileNotFoundError:  # it was removed after the scan
            return checkpoint
        except ParseError as error:
            wrong = listed_damage(Code.META_UNREADABLE, error.within(path), path)
            return replace(checkpoint, findings=(*checkpoint.findings, wrong))

    def expected(self, inventory: Inventory, evidence: Evidence) -> Expected:
        """Expect the files in each save's own record, or else every role in the tree on each rank."""
        present_roles = {shard.role for checkpoint in inventory.checkpoints for shard in checkpoint.shards}
        roles = {ShardRole.MODEL} if evidence.weights_alone else {ShardRole.MODEL, *present_roles}
        full = {*roles, ShardRole.OPTIMIZER}
        return Expected(
            checkpoints=tuple(
                _expectation(checkpoint, evidence, full if _is_full(checkpoint) else roles)
                for checkpoint in inventory.checkpoints
            ),
            runs=inventory.runs,
        )

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is a name of temporary files by MindFormers or Python."""
        return parse_shape(name).kind is FileKind.IN_PROGRESS

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents."""
        records = tuple(f"{checkpoint.name}/{record}" for record in WRITTEN)
        return Members(paths=(checkpoint.name,), records=records)

    def seal_place(self, checkpoint: Checkpoint) -> SealPlace | Refusal:
        """Return a place in the save's own folder."""
        return SealPlace.inside(checkpoint.name, layout=self.name, checkpoint=checkpoint.name)

    def peer_path(self, checkpoint: Checkpoint, rank: Rank, role: ShardRole) -> str | Refusal:
        """Derive the path from the path of a different rank, because data-parallel ranks save the same data."""
        template = next((shard for shard in checkpoint.shards if shard.role is role and shard.rank is not None), None)
        return Refusal(why=f"has no rank's {role.value} shard") if template is None else _path_for(template, rank)

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return no files, because the slices of each rank show which files it reads."""
        from ckpttool.core.domain.placement import ReadByAll

        return ReadByAll()

    def slices(self, storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
        """Read the slices from metadata.json."""
        path = f"{checkpoint.name}/metadata.json"
        try:
            return from_metadata(storage, path, slices_in, files=len(checkpoint.shards))
        except (FileNotFoundError, ParseError):
            return None

    def pointers(self, storage: Storage, ranks: Iterable[Rank]) -> Iterator[Pointer]:
        """Read the tracker."""
        return iter((tracker_pointer(storage, iteration_folder),))

    def pointing_to(self, checkpoint: Checkpoint) -> Mapping[str, PointerText]:
        """Return the contents of a tracker that names this save."""
        return tracker_naming(checkpoint.name, iteration_step(checkpoint.name))

    def recorded_name(self, checkpoint: Checkpoint) -> str | Refusal:
        """Refuse, because the health is recorded in the save itself."""
        return holds_its_mark(self.name, companion=BESIDE_THE_SAVES)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the save's folder.

        MindFormers treats a path without a tracker as the iteration itself.
        """
        if by_pynative(checkpoint):
            from ckpttool.trainers.mindformers.pynative_load import load_settings, older_saves

            remarks = older_saves(checkpoint, inventory.checkpoints)
            return load_settings(inventory.path_of(checkpoint.name), checkpoint, remarks)
        from ckpttool.trainers.mindformers.load import LoadKeys

        keys = LoadKeys(
            load_checkpoint=inventory.path_of(checkpoint.name),
            resume_training=True,
            load_ckpt_format="safetensors",
            use_legacy_format=False,
        )
        return keys.settings(checkpoint.renames)


# The scan -------------------------------------------------------------------------------------------------------------


def _with_times(storage: Storage, checkpoints: list[Checkpoint], tracked: str | None) -> list[Checkpoint]:
    """Add the times of iterations newer than the tracker's.

    They show whether the tracker was written after them.
    """
    if tracked is None:
        return checkpoints
    progress, number = Progress(checkpoints), iteration_step(tracked)
    return [
        stamped(storage, checkpoint)
        if (checkpoint.step or 0) > number or progress.counts_samples(checkpoint.prefix)
        else checkpoint
        for checkpoint in checkpoints
    ]


def _same_prefix(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Give a folder without a shard, and thus without a known prefix, the most common prefix."""
    prefixes = Counter(checkpoint.prefix for checkpoint in checkpoints if checkpoint.shards)
    usual = prefixes.most_common(1)[0][0] if prefixes else ""
    return [checkpoint if checkpoint.shards else replace(checkpoint, prefix=usual) for checkpoint in checkpoints]


def _scan_iteration(storage: Storage, name: str, options: ScanOptions) -> Checkpoint:
    findings: list[Finding] = []
    entries: list[Entry] = []
    is_lost = False
    try:
        entries = sorted(storage.entries(name), key=lambda entry: entry.name)
    except OSError as error:
        is_lost = isinstance(error, LostLinkError)
        findings.append(_withheld(name, error))
    shards, worlds, prefix = _shards_in(storage, name, entries, findings, sizes=options.sizes)
    world = worlds.most_common(1)[0][0] if worlds else None
    common = None if is_lost else _read_common(storage, name, findings)
    expected = None if is_lost else _read_metadata(storage, name, world, findings, files=len(shards))
    names = [entry.name for entry in entries]
    if world == 1 and "metadata.json" not in names:
        extra = _extra_safetensors(name, prefix, names)
        strays = {stray(finding.path) for finding in extra if finding.path is not None}
        findings = [*(finding for finding in findings if finding not in strays), *extra]
    step, state = iteration_step(name), common.state if common else TrainState()
    pynative = _is_pynative(state, step)
    if common is not None:
        findings += _common_findings(state, step, f"{name}/common.json", pynative=pynative)
    unread = {finding.path for finding in findings if finding.code is Code.UNREADABLE}
    if world is None and not unread:
        findings.append(listed_damage(Code.SHARD_MISSING, "this folder has no shard", name))
    commit = CommitState.UNCOMMITTED
    if common is not None and (expected is not None or world == 1):
        commit = CommitState.COMMITTED
    elif not unread.isdisjoint({name, f"{name}/common.json", f"{name}/metadata.json"}):
        commit = CommitState.UNKNOWN
    return Checkpoint(
        name=name,
        prefix=prefix,
        scalars=_scalars(state, pynative=pynative),
        step=step,
        step_source=StepSource.CONTENT if state.step_num is not None else StepSource.NAME,
        shards=shards,
        topology=Topology(world_size=world),
        format=FormatName.SAFETENSORS,
        expected=expected,
        commit=commit,
        content=Content.FULL,
        health=common.health if common else Health.UNKNOWN,
        facts=state.facts if not pynative else (("epoch", state.epoch_num),),  # it does not record the updates
        rules=RULES,
        findings=tuple(findings),
    )


def _shards_in(
    storage: Storage, folder: str, entries: Iterable[Entry], findings: list[Finding], *, sizes: bool
) -> tuple[tuple[Shard, ...], Counter[int], str]:
    """Return a folder's shards, the world sizes in their names, and the most common prefix; report problems."""
    shards: list[Shard] = []
    worlds: Counter[int] = Counter()
    prefixes: Counter[str] = Counter()
    for entry in entries:
        path = f"{folder}/{entry.name}"
        match = re.fullmatch(_SHARD_NAME, entry.name)
        if match is None or max(int(match["rank"]), int(match["world"])) > MAX_RANKS:
            if entry.name not in _RECORDS:
                findings.append(stray(path))
            continue
        role, rank = _ROLES[match["role"]], Rank(int(match["rank"]))
        shard = Shard(path=path, rank=rank, role=role, format=FormatName.SAFETENSORS)
        if listed := listed_shard(storage, shard, entry.kind, findings, sizes=sizes):
            shards += listed
            worlds[int(match["world"])] += 1
            prefixes[match["prefix"] or ""] += 1
    if len(worlds) > 1:
        message = f"shards of several world sizes in one folder: {', '.join(map(str, sorted(worlds)))}"
        remedy = "move away the shards of another number of ranks, or resume from another checkpoint"
        findings.append(listed_damage(Code.WORLD_SIZE_DIFFERS, message, folder, remedy=remedy))
    return by_rank(shards), worlds, prefixes.most_common(1)[0][0] if prefixes else ""


def _extra_safetensors(folder: str, prefix: str, names: Iterable[str]) -> list[Finding]:
    """Report files that MindFormers would read in addition to the two files of a single card.

    Source: generate_default_metadata_from_checkpoint (1.7.0 to 2.1.0) reads every file that `glob("*.safetensors")`
    finds, and raises an error if two files contain the same parameter.
    """
    start = f"{prefix}-" if prefix else ""
    own_names = {f"{start}{role}-{0:07d}-{1:07d}.safetensors" for role in _ROLES}
    read = [name for name in names if name.endswith(".safetensors") and not name.startswith(".")]
    return [
        suspect(
            MindFormersCode.EXTRA_SAFETENSORS,
            "a single card's checkpoint has no metadata.json, so MindFormers reads every *.safetensors here as a "
            "part of it, including this one, and stops if it finds a parameter twice",
            path=f"{folder}/{name}",
            remedy=f"move it out of {folder}/ if it is not part of this checkpoint",
        )
        for name in read
        if name not in own_names
    ]


def _tracker(storage: Storage, listing: Listing, names: set[str]) -> tuple[str | None, list[Finding]]:
    """Read the tracker.

    It is written last, but not atomically: an empty or truncated tracker proves nothing about the shards.
    """
    if not any(entry.name == TRACKER for entry in listing.entries):
        message = "no tracker file; the step is taken from the iteration folders"
        return None, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]
    try:
        tracked = iteration_folder(tracked_step(storage))
    except OSError as error:
        return None, [_withheld(TRACKER, error)]
    except ParseError as error:
        message = f"{error}; MindFormers stops here; ckpttool uses the iteration folders"
        return None, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]
    if tracked in names:
        return tracked, []
    message = f"the tracker names {tracked}, which does not exist; MindFormers stops here and never falls back"
    return tracked, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]


# What the PyNative trainer saved --------------------------------------------------------------------------------------


def _is_pynative(state: TrainState, number: int) -> bool:
    """Return whether the PyNative trainer wrote a common.json, in which `step_num` is the planned number of steps.

    Args:
        state: The contents of the file.
        number: The step in the folder's name.

    Source: `CommonInfo` of MindFormers 1.9.0 to 2.1.0; only that trainer sets `consumed_samples`.
    """
    if state.consumed_samples is not None:
        return True
    return state.step_num not in {None, number} and state.global_step == number


def _scalars(state: TrainState, *, pynative: bool) -> Scalars:
    if not pynative:
        return state.scalars
    scalars = replace(state, step_num=state.global_step).scalars
    return replace(scalars, rest=(*scalars.rest, (PLANNED_STEPS, state.step_num or 0)))


def _of_one_trainer(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Report the static trainer's saves with a wrong step, each of which looks like a save of the PyNative trainer.

    The last save of a PyNative run also records its own step, which equals the planned number of steps in the other
    saves.
    """
    own_steps = {save.step for save in checkpoints if save.scalars.step == save.step and not by_pynative(save)}
    if 2 * len(own_steps) < len(checkpoints):
        return checkpoints
    of_one = []
    for save in checkpoints:
        rest = dict(save.scalars.rest)
        planned = rest.pop(PLANNED_STEPS, None)
        if planned is None or save.scalars.samples is not None or planned in own_steps:
            of_one.append(save)
        else:
            wrong = _other_step(int(planned), iteration_step(save.name), f"{save.name}/common.json")
            scalars = replace(save.scalars, step=int(planned), rest=tuple(rest.items()))
            of_one.append(replace(save, scalars=scalars, findings=(*save.findings, wrong)))
    return of_one


def _without_optimizer(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Mark the PyNative trainer's saves as weights only if no save has an optimizer, as with `no_save_optim`.

    An asynchronous save may have a common.json while its optimizer file still has a temporary name.
    """
    if any(shard.role is ShardRole.OPTIMIZER for save in checkpoints for shard in save.shards):
        return checkpoints
    return [
        replace(save, content=Content.WEIGHTS_ONLY)
        if by_pynative(save) and save.shards and not any(map(_is_temporary, save.findings))
        else save
        for save in checkpoints
    ]


def _is_full(checkpoint: Checkpoint) -> bool:
    """Return whether a save must have an optimizer, as the PyNative trainer requires."""
    return by_pynative(checkpoint) and checkpoint.content is Content.FULL


def _is_temporary(finding: Finding) -> bool:
    """Return whether a finding reports a file under a temporary name."""
    name = (finding.path or "").rpartition("/")[2]
    return finding.code is Code.STRAY_FILE and parse_shape(name).kind is FileKind.IN_PROGRESS


def _other_step(step: int, number: int, path: str) -> Finding:
    """Report a common.json whose step differs from the step in the folder's name."""
    return listed_damage(Code.STEP_DISAGREES, f"common.json says step {step}, the folder's name says {number}", path)


# The records in a save's folder ---------------------------------------------------------------------------------------


def role_of(file: str) -> ShardRole | None:
    """Return the role of a shard by its name; None if MindFormers gives no shard this name."""
    match = re.fullmatch(_SHARD_NAME, file)
    return None if match is None else _ROLES[match["role"]]


class CommonRecord(NamedTuple):
    """Training state that all ranks share."""

    state: TrainState
    health: Health
    """The health from `ckpt_status`: 0 is healthy, 1 is unhealthy.

    An absent or null value means that the monitor was off, so the health is unknown.
    """


_HEALTH = {0: Health.HEALTHY, 1: Health.UNHEALTHY, None: Health.UNKNOWN}


def parse_common(data: bytes, *, what: str) -> CommonRecord:
    """Parse a common.json; fields of other versions are ignored.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    record = parse_object(data, where=what)
    health = _HEALTH.get(get_optional_int(record, "ckpt_status", where=what), Health.UNKNOWN)
    state = TrainState(
        epoch_num=get_optional_int(record, "epoch_num", where=what),
        step_num=get_optional_int(record, "step_num", where=what),
        global_step=get_optional_int(record, "global_step", where=what),
        loss_scale=get_optional_float(record, "loss_scale", where=what),
        global_batch_size=get_optional_int(record, "global_batch_size", where=what) or None,  # 0 means unknown
        consumed_samples=get_optional_int(record, "consumed_samples", where=what),
    )
    return CommonRecord(state=state, health=health)


def metadata_memory(files: int) -> int:
    """Return the maximum memory for a metadata.json, which lists every slice of every rank.

    Args:
        files: Number of files in the same folder: the more files, the more memory is allowed.
    """
    return MOST_MEMORY + files * _MEMORY_A_FILE


def parse_metadata(data: bytes, *, what: str, most_memory: int = MOST_MEMORY) -> JsonObject:
    """Parse a metadata.json.

    Args:
        data: The complete file.
        what: Name of the file, for the error.
        most_memory: The result of `metadata_memory`.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    return parse_object(data, where=what, most_memory=most_memory)


def files_in(record: JsonObject, what: str) -> frozenset[str]:
    """Return the names of all files of the checkpoint, according to its metadata.json.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    return frozenset(
        get_str(as_object(place, where=what, key=key), "file_name", where=f"{what}: {key}")
        for key, places in get_object(record, "storage_data", where=what).items()
        for place in as_list(places, where=what, key=key)
    )


def _read_common(storage: Storage, folder: str, findings: list[Finding]) -> CommonRecord | None:
    """Read common.json, and add problems in it to the findings."""
    path = f"{folder}/common.json"
    try:
        return parse_common(storage.small_file(path, limit=COMMON_LIMIT), what=path)
    except FileNotFoundError:
        message = "no common.json: MindFormers cannot resume without its step and loss scale"
        findings.append(listed_damage(Code.METADATA_INCOMPLETE, message, path))
    except OSError as error:
        findings.append(_withheld(path, error))
    except ParseError as error:
        findings.append(listed_damage(Code.META_UNREADABLE, error.within(path), path))
    return None


def _common_findings(state: TrainState, number: int, path: str, *, pynative: bool) -> list[Finding]:
    """Compare common.json with the folder's name, and find missing or null fields that MindFormers uses."""
    findings = []
    step = state.global_step if pynative else state.step_num
    if step not in {None, number}:
        findings.append(_other_step(step or 0, number, path))
    needed = ("global_step",) if pynative else _NEEDED
    lacking = [name for name in needed if getattr(state, name) is None]
    if lacking:
        findings.append(
            damage(
                Code.SCALARS_MISSING,
                f"no {', '.join(lacking)}: MindFormers stops with a TypeError",
                path=path,
                remedy="add the values of the run, or resume from another checkpoint",
            )
        )
    return findings


def from_metadata(storage: Storage, path: str, read: Callable[[JsonObject, str], _T], *, files: int) -> _T:
    """Read a metadata.json, and return the result of `read`.

    Large files are read one at a time, because many iterations are read in parallel.
    """
    try:
        return read(parse_metadata(storage.small_file(path, limit=_SMALL_METADATA), what=path), path)
    except OverLimitError:
        pass
    most = metadata_memory(files)
    with _LARGE_METADATA:
        data = storage.small_file(path, limit=min(most // 2, METADATA_LIMIT))
        return read(parse_metadata(data, what=path, most_memory=most), path)


def slices_in(record: JsonObject, what: str) -> RecordedSlices:
    """Return which slice of each tensor a rank has, according to metadata.json.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    from ckpttool.trainers.mindformers.layouts.entries import parse_slice

    by_tensor: dict[str, dict[Rank, int]] = {}
    for number, (key, places) in enumerate(get_object(record, "storage_data", where=what).items()):
        by_rank = by_tensor.setdefault(parse_slice(key, what)[0], {})
        for place in as_list(places, where=what, key=key):
            rank = get_int(as_object(place, where=what, key=key), "storage_rank", where=f"{what}: {key}")
            if by_rank.setdefault(Rank(rank), number) != number:
                raise ParseError(f"rank {rank} has two slices", where=what, key=key)
    shared: dict[tuple[tuple[Rank, int], ...], dict[Rank, int]] = {}
    return RecordedSlices(source=what, slices={name: _shared(by_rank, shared) for name, by_rank in by_tensor.items()})


def _shared(slices: dict[Rank, int], shared: dict[tuple[tuple[Rank, int], ...], dict[Rank, int]]) -> Mapping[Rank, int]:
    """Return one shared mapping for all tensors that are divided the same way; slices are counted from 0."""
    numbers: dict[int, int] = {}
    for rank in sorted(slices):
        slices[rank] = numbers.setdefault(slices[rank], len(numbers))
    return shared.setdefault(tuple(sorted(slices.items())), slices)


def _read_metadata(
    storage: Storage, folder: str, world: int | None, findings: list[Finding], *, files: int
) -> tuple[str, ...] | None:
    """Return the paths in metadata.json; None if the file contains no path that is safe to follow."""
    path = f"{folder}/metadata.json"
    try:
        names = from_metadata(storage, path, files_in, files=files)
    except FileNotFoundError:
        if world is not None and world > 1:
            message = f"no metadata.json beside the shards of {world} ranks: the save is not complete"
            findings.append(listed_damage(Code.METADATA_INCOMPLETE, message, path))
        return None
    except OSError as error:
        findings.append(_withheld(path, error))
        return None
    except ParseError as error:
        findings.append(listed_damage(Code.META_UNREADABLE, error.within(path), path))
        return None
    escaping = sorted(name for name in names if re.fullmatch(_SHARD_NAME, name) is None or "/" in name)
    if escaping:
        message = f"metadata.json names {escaping[0]!r}, which is not a shard of this folder; it is not followed"
        findings.append(unsafe(Code.UNSAFE_NAME, message, path=path))
        return None
    return tuple(f"{folder}/{name}" for name in sorted(names))


def _withheld(path: str, error: OSError) -> Finding:
    """Report a part of a save that cannot be read from the disk."""
    message = f"cannot be read ({error.strerror or error}): unknown, not missing"
    remedy = LOST_LINK_REMEDY if isinstance(error, LostLinkError) else None
    return unknown(Code.UNREADABLE, message, path=path, remedy=remedy)


# The required files ---------------------------------------------------------------------------------------------------


def _expectation(checkpoint: Checkpoint, evidence: Evidence, roles: AbstractSet[ShardRole]) -> Expectation:
    """Return the expected files.

    Weights are always expected: without them, MindFormers would continue with random weights.
    """
    world = checkpoint.topology.world_size
    files: ExpectedFiles | None = None
    notes = []
    if checkpoint.expected is not None:
        files = FilesByPath(paths=checkpoint.expected, ranks=_ranks_of_paths(checkpoint, checkpoint.expected))
        if world is not None and all(shard.role is not ShardRole.MODEL for shard in checkpoint.shards):
            message = "no rank has a model shard of it, and its own record names no existing shard"
            notes.append(listed_damage(Code.SHARD_MISSING, message, checkpoint.name, remedy=_RESTORE))
    elif world is not None:
        size = WorldSize(world=world, why=f"the files' names say {world}", remedy=_RESTORE)
        files = FilesByRank(size=size, roles=tuple(sorted(roles)), absent=partial(_absent, checkpoint.name, size))
    for known_world in evidence.worlds:
        if known_world.declared and world is not None and known_world.world_size != world:
            message = (
                f"saved by {world} ranks, but to be loaded by {known_world.world_size} ({known_world.source}): "
                "MindFormers re-slices"
            )
            notes.append(note(Code.WORLD_SIZE_DIFFERS, message))
    return Expectation(files=files, topology=checkpoint.topology, notes=tuple(notes))


def _absent(name: str, size: WorldSize, rank: Rank, role: ShardRole) -> Finding:
    return size.missing(f"rank {rank} has no {role.value} shard of it", Code.SHARD_MISSING, name, [rank])


def _path_for(template: Shard, rank: Rank) -> str:
    """Derive the path of one rank's shard from the path of a different rank's."""
    return template.path.replace(f"-{template.rank:07}-", f"-{rank:07}-")


def _ranks_of_paths(checkpoint: Checkpoint, paths: Collection[str]) -> dict[str, Rank]:
    """Return the rank of each path that is derived from the existing paths; empty if all expected files exist."""
    if {shard.path for shard in checkpoint.shards}.issuperset(paths):
        return {}
    models = {shard.role: shard for shard in checkpoint.shards if shard.rank is not None}
    return {
        _path_for(shard, Rank(rank)): Rank(rank)
        for shard in models.values()
        for rank in range(checkpoint.topology.world_size or 0)
    }
