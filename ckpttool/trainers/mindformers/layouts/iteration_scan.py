"""List `iteration_*/` folders, and read the records in each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, Severity, in_order, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.progress import Progress
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, Rank, Step
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.core.storage.base import Entry, Kind, LostLinkError, Storage
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.listed import (
    in_order_of_progress,
    listed_damage,
    lost_link,
    one_run,
    stamp_if_there,
    stamped,
    stray,
    tracked_in,
)
from ckpttool.trainers.common.tracker_file import tracked_step
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.iteration_records import (
    SHARD_NAME,
    common_findings,
    is_pynative,
    other_step,
    read_common,
    read_metadata,
    withheld,
)
from ckpttool.trainers.mindformers.layouts.names import (
    ITERATION_LAYOUT,
    WRITTEN,
    iteration_folder,
    iteration_step,
)
from ckpttool.trainers.mindformers.scalars import PLANNED_STEPS, RULES, TrainState, by_pynative

_ROLES = {"model": ShardRole.MODEL, "opt": ShardRole.OPTIMIZER}
_RECORDS = {*WRITTEN, MANIFEST_NAME}


class _Parsed(NamedTuple):
    """The listing of one iteration's folder."""

    shards: tuple[Shard, ...]
    worlds: Counter[int]
    prefixes: Counter[str]
    findings: tuple[Finding, ...]
    safetensors: tuple[str, ...] = ()
    """Whatever is named `*.safetensors`, shard or not, sorted: what MindFormers reads where there is no metadata."""
    has_metadata: bool = False


def scan_iterations(storage: Storage, listing: Listing, folders: Sequence[str], options: ScanOptions) -> Inventory:
    """Read each iteration's names, common.json and metadata.json; no shard is opened.

    Args:
        storage: The tree.
        listing: Of its root.
        folders: Those of one save each.
        options: What to take beyond the names.
    """
    checkpoints = _same_prefix(list(map_waiting(lambda name: _scan_iteration(storage, name, options), folders)))
    known_names = {TRACKER, OWN_FOLDER, *folders}
    strays = [entry.name for entry in listing.entries if entry.name not in known_names]
    checkpoints = in_order_of_progress(_of_one_trainer(checkpoints))
    tracked, trouble = _tracker(storage, listing, {checkpoint.name for checkpoint in checkpoints})
    checkpoints = _with_times(storage, checkpoints, tracked)
    return Inventory(
        root=storage.root,
        layout=ITERATION_LAYOUT,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *trouble)),
        strays=tuple(sorted(strays)),
        tracked=None if tracked is None else tracked_in(storage, TRACKER, tracked, iteration_step(tracked)),
    )


def _with_times(storage: Storage, checkpoints: list[Checkpoint], tracked: str | None) -> list[Checkpoint]:
    """Take the times of the iterations that the tracker may not cover: they tell whether it was written after them."""
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
    """Give a folder without a shard, which cannot tell its prefix, the one that most others have."""
    prefixes = Counter(checkpoint.prefix for checkpoint in checkpoints if checkpoint.shards)
    usual = prefixes.most_common(1)[0][0] if prefixes else ""
    return [checkpoint if checkpoint.shards else replace(checkpoint, prefix=usual) for checkpoint in checkpoints]


def _scan_iteration(storage: Storage, name: str, options: ScanOptions) -> Checkpoint:
    findings: list[Finding] = []
    is_lost = False
    try:
        parsed = _parse_entries(storage, name, storage.entries(name), options)
    except OSError as error:
        is_lost = isinstance(error, LostLinkError)
        parsed = _Parsed(shards=(), worlds=Counter(), prefixes=Counter(), findings=())
        findings.append(withheld(name, error))
    findings += parsed.findings
    world = parsed.worlds.most_common(1)[0][0] if parsed.worlds else None
    common = None if is_lost else read_common(storage, name, findings)
    expected = None if is_lost else read_metadata(storage, name, world, findings, files=len(parsed.shards))
    if world == 1 and not parsed.has_metadata:
        extra = _extra_safetensors(name, parsed)
        strays = {stray(finding.path) for finding in extra if finding.path is not None}
        findings = [*(finding for finding in findings if finding not in strays), *extra]
    step, state = iteration_step(name), common.state if common else TrainState()
    recorded = common is not None and (expected is not None or world == 1)
    records = {name, f"{name}/common.json", f"{name}/metadata.json"}
    is_withheld = any(finding.code is Code.UNREADABLE and finding.path in records for finding in findings)
    unrecorded = CommitState.UNKNOWN if is_withheld else CommitState.UNCOMMITTED
    pynative = is_pynative(state, step)
    if common is not None:
        findings += common_findings(state, step, f"{name}/common.json", pynative=pynative)
    if world is None and not any(finding.code is Code.UNREADABLE for finding in findings):
        findings.append(listed_damage(Code.SHARD_MISSING, "no shard at all in this folder", name))
    return Checkpoint(
        name=name,
        prefix=parsed.prefixes.most_common(1)[0][0] if parsed.prefixes else "",
        scalars=_scalars(state, pynative=pynative),
        step=step,
        step_source=StepSource.CONTENT if state.step_num is not None else StepSource.NAME,
        shards=parsed.shards,
        topology=Topology(world_size=world),
        format=FormatName.SAFETENSORS,
        expected=expected,
        commit=CommitState.COMMITTED if recorded else unrecorded,
        content=Content.FULL,
        health=common.health if common else Health.UNKNOWN,
        facts=state.facts,
        rules=RULES,
        findings=tuple(findings),
    )


def _scalars(state: TrainState, *, pynative: bool) -> Scalars:
    if not pynative:
        return state.scalars
    scalars = replace(state, step_num=state.global_step).scalars
    return replace(scalars, rest=(*scalars.rest, (PLANNED_STEPS, state.step_num or 0)))


def _of_one_trainer(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Find a wrong step among saves of the static trainer, which alone would pass for one of the PyNative trainer.

    The last save of a run of that one says its own step, too: as many as the others say were to be made.
    """
    own_steps = {save.step for save in checkpoints if save.scalars.step == save.step and not by_pynative(save)}
    if 2 * len(own_steps) < len(checkpoints):
        return checkpoints
    return [_with_wrong_step(save) if _is_wrong_beside(save, own_steps) else save for save in checkpoints]


def _is_wrong_beside(save: Checkpoint, own_steps: set[Step | None]) -> bool:
    planned = dict(save.scalars.rest).get(PLANNED_STEPS)
    return planned is not None and save.scalars.samples is None and planned not in own_steps


def _with_wrong_step(save: Checkpoint) -> Checkpoint:
    rest = dict(save.scalars.rest)
    planned = int(rest.pop(PLANNED_STEPS))
    wrong = other_step(planned, iteration_step(save.name), f"{save.name}/common.json")
    scalars = replace(save.scalars, step=planned, rest=tuple(rest.items()))
    return replace(save, scalars=scalars, findings=(*save.findings, wrong))


def _parse_entries(storage: Storage, folder: str, entries: list[Entry], options: ScanOptions) -> _Parsed:
    shards, findings = [], []
    worlds: Counter[int] = Counter()
    prefixes: Counter[str] = Counter()
    for entry in sorted(entries, key=lambda entry: entry.name):
        path = f"{folder}/{entry.name}"
        match = re.fullmatch(SHARD_NAME, entry.name)
        if match is None or max(int(match["rank"]), int(match["world"])) > MAX_RANKS:
            if entry.name not in _RECORDS:
                findings.append(stray(path))
        elif entry.kind not in {Kind.FILE, Kind.LOST}:
            severity = Severity.DAMAGE if entry.kind is Kind.FOLDER else Severity.UNSAFE
            message = "expected a file, but this is a folder, FIFO or device"
            findings.append(Finding(code=Code.NOT_A_REGULAR_FILE, severity=severity, message=message, path=path))
        else:
            worlds[int(match["world"])] += 1
            prefixes[match["prefix"] or ""] += 1
            shards.append(_shard(storage, path, match, sizes=options.sizes))
            findings += lost_link(storage, path, Rank(int(match["rank"]))) if entry.kind is Kind.LOST else []
    if len(worlds) > 1:
        message = f"shards of several world sizes in one folder: {', '.join(map(str, sorted(worlds)))}"
        remedy = "move away those that another number of ranks saved, or resume from another checkpoint"
        findings.append(listed_damage(Code.WORLD_SIZE_DIFFERS, message, folder, remedy=remedy))
    shards.sort(key=lambda shard: (shard.rank or 0, shard.path))
    names = sorted(entry.name for entry in entries)
    return _Parsed(
        shards=tuple(shards),
        worlds=worlds,
        prefixes=prefixes,
        findings=tuple(findings),
        safetensors=tuple(name for name in names if name.endswith(".safetensors") and not name.startswith(".")),
        has_metadata="metadata.json" in names,
    )


def _extra_safetensors(folder: str, parsed: _Parsed) -> list[Finding]:
    """Find what MindFormers would read beside the two files of a single card.

    Source: generate_default_metadata_from_checkpoint (1.7.0 to 2.1.0) reads every file that `glob("*.safetensors")`
    finds, and raises an error where two hold the same parameter.
    """
    prefix = parsed.prefixes.most_common(1)[0][0]
    start = f"{prefix}-" if prefix else ""
    own_names = {f"{start}{role}-{0:07d}-{1:07d}.safetensors" for role in _ROLES}
    return [
        suspect(
            Code.EXTRA_SAFETENSORS,
            "a single card's checkpoint has no metadata.json, so MindFormers reads every *.safetensors here as "
            "a part of it, this one too, and stops where it finds a parameter twice",
            path=f"{folder}/{name}",
            remedy=f"move it out of {folder}/, if it is not a part of this checkpoint",
        )
        for name in parsed.safetensors
        if name not in own_names
    ]


def _shard(storage: Storage, path: str, match: re.Match[str], *, sizes: bool) -> Shard:
    return Shard(
        path=path,
        rank=Rank(int(match["rank"])),
        role=_ROLES[match["role"]],
        format=FormatName.SAFETENSORS,
        stamp=stamp_if_there(storage, path) if sizes else None,
    )


def _tracker(storage: Storage, listing: Listing, names: set[str]) -> tuple[str | None, list[Finding]]:
    """Read the tracker, which is written last and not atomically: empty or torn is no verdict on the shards."""
    if not any(entry.name == TRACKER for entry in listing.entries):
        message = "no tracker file; the iteration folders tell the step instead"
        return None, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]
    try:
        tracked = iteration_folder(tracked_step(storage))
    except OSError as error:
        return None, [withheld(TRACKER, error)]
    except ParseError as error:
        message = f"{error}; MindFormers stops here, the iteration folders still tell"
        return None, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]
    if tracked in names:
        return tracked, []
    message = f"the tracker names {tracked}, which is not there; MindFormers stops here and never falls back"
    return tracked, [note(Code.TRACKER_DISAGREES, message, path=TRACKER)]
