"""AutoModel's layout: `epoch_E_step_N/{model, optim, dataloader, rng}/`, and `step_scheduler.pt`."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, NamedStep, Topology
from ckpttool.core.domain.finding import Code, Finding, damage, in_order, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, Rank, Step, counted
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.automodel import (
    COUNTERS,
    LAYOUT,
    LOADERS,
    MARK,
    MODEL,
    OPTIMIZER,
    POINTER,
    POINTER_LIMIT,
    RANDOM,
    SAVE,
    TRAINER,
)
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.listed import by_rank, listed_damage, listed_shard
from ckpttool.trainers.common.saved_values import count_at, first_value
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_dcp import METADATA, WRITER, is_store

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.trainers.torch_dcp.saves import SaveRecord
    from ckpttool.trainers.torch_dcp.store import DcpStore

_TEXTS = ("LATEST.txt", "LOWEST_VAL.txt")
_WEIGHTS = r"(?:shard-(?P<number>[0-9]{1,7})-)?.+\.safetensors"
_LOADER = r"dataloader_dp_rank_[0-9]{1,7}\.pt"
_RANDOM_STATE = r"rng_(?:global|dp)_rank_(?P<rank>[0-9]{1,7})\.pt"
_UNFINISHED = rf"{SAVE}\.reserving-[0-9a-f]{{1,32}}|\.{POINTER}\.[0-9a-f]{{1,32}}\.tmp"


class AutoModelLayout(Untracked):
    """A layout with one folder per save, and links that name the last and the best save."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its record of slices and its counters."""
        from ckpttool.trainers.torch_dcp.saves import SaveTree

        tree = SaveTree(layout=LAYOUT.name, reading=_save_record, is_save=_saves, read_folder=_read_folder)
        inventory = tree.scan(storage, listing, options)
        own = {name for name in inventory.strays if re.fullmatch(POINTER, name) or self.is_unfinished(name)}
        named = {_named_in(storage, entry.name) for entry in listing.entries if entry.name in _TEXTS}
        checkpoints = [
            replace(save, is_tracked=True) if save.name in named else save
            for save in _with_peers(inventory.checkpoints)
        ]
        return replace(
            inventory,
            checkpoints=tuple(checkpoints),
            strays=tuple(name for name in inventory.strays if name not in own),
            findings=in_order(finding for finding in inventory.findings if finding.path not in own),
        )

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read records of slices that are too large for a scan, and the headers of the weights."""
        from ckpttool.trainers.automodel.missing_weights import incomplete_weights
        from ckpttool.trainers.torch_dcp.store import read_store_closely

        folders = (f"{checkpoint.name}/{part}" for part in (MODEL, OPTIMIZER))
        checkpoint = read_store_closely(storage, checkpoint, *folders)
        if checkpoint.commit is not CommitState.COMMITTED:
            return checkpoint
        return replace(checkpoint, findings=(*checkpoint.findings, *incomplete_weights(storage, checkpoint)))

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is the temporary name of a save or of a link."""
        return re.fullmatch(_UNFINISHED, name.partition("/")[0]) is not None

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the records, the slices, the weights and the counters; each rank also reads its own states."""
        from ckpttool.trainers.torch_dcp.store import read_by_all

        return read_by_all(checkpoint)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents; refuse if a text in the place of a link names it."""
        if checkpoint.is_tracked:
            return Refusal(why=f"is the one that {' or '.join(_TEXTS)} names")
        return Members(paths=(checkpoint.name,), records=(f"{checkpoint.name}/{OPTIMIZER}/{METADATA}",))

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return the setting for the path of the save."""
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        place = Place.parsed("argument:--checkpoint.restore_from")
        setting = TrainerSetting(place=place, value=path, is_path=True)
        return LoadSettings(trainer=TRAINER.name, path=path, settings=(setting,))


def _named_in(storage: Storage, text: str) -> str | None:
    """Return the save that a text in the place of a link names; None if it cannot be read."""
    try:
        return posixpath.normpath(storage.small_file(text, limit=POINTER_LIMIT).decode("utf-8", "replace").strip())
    except OSError:
        return None


def _saves(listing: Listing) -> Iterator[str]:
    return (name for name in listing.folders("epoch_") if re.fullmatch(SAVE, name))


def _read_folder(storage: Storage, folder: str, *, sizes: bool, most: int) -> DcpStore:
    """List a save's files, and read its records of slices."""
    from ckpttool.trainers.torch_dcp.store import DcpStore, read_store

    names = {entry.name: entry.kind for entry in storage.entries(folder)}
    stores: list[DcpStore] = []
    shards: list[Shard] = []
    findings: list[Finding] = []
    for part in (OPTIMIZER, MODEL):
        below = f"{folder}/{part}"
        files = dict(storage.entries(below)) if part in names else {}
        if is_store(files):
            stores.append(read_store(storage, below, sizes=sizes, most=most))
            continue
        for name, kind in sorted(files.items()):
            if re.fullmatch(_WEIGHTS, name):
                shard = Shard(path=f"{below}/{name}", rank=None, role=ShardRole.MODEL, format=FormatName.SAFETENSORS)
                shards += listed_shard(storage, shard, kind, findings, sizes=sizes)
    is_complete = bool(stores) and len(stores) + bool(shards) >= len((OPTIMIZER, MODEL)) and MARK not in names
    for part, pattern in ((LOADERS, _LOADER), (RANDOM, _RANDOM_STATE)):
        for name, kind in sorted(storage.entries(f"{folder}/{part}")) if part in names else ():
            match = re.fullmatch(pattern, name)
            if match is not None:
                rank = match.groupdict().get("rank")
                shards += listed_shard(storage, _state(f"{folder}/{part}/{name}", rank), kind, findings, sizes=sizes)
    if COUNTERS in names:
        shards += listed_shard(storage, _state(f"{folder}/{COUNTERS}"), names[COUNTERS], findings, sizes=sizes)
    expected = [path for store in stores for path in store.expected or ()]
    is_known = all(store.expected is not None for store in stores)
    commits = [store.commit for store in stores]
    commit = next((commit for commit in commits if commit is not CommitState.COMMITTED), CommitState.COMMITTED)
    return DcpStore(
        shards=by_rank((*shards, *(shard for store in stores for shard in store.shards))),
        expected=(*expected, *(shard.path for shard in shards)) if is_known else None,
        commit=commit if is_complete else CommitState.UNCOMMITTED,
        findings=(*findings, *(finding for store in stores for finding in store.findings)),
        metadata=stores[0].metadata if stores else None,
    )


def _state(path: str, rank: str | None = None) -> Shard:
    number = None if rank is None or int(rank) >= MAX_RANKS else Rank(int(rank))
    return Shard(path=path, rank=number, role=ShardRole.STATE, format=FormatName.TORCH_ZIP)


def _save_record(storage: Storage, name: str, store: DcpStore) -> SaveRecord:
    from ckpttool.trainers.torch_dcp.saves import SaveRecord

    epoch, step = (int(number) for number in re.findall("[0-9]+", name))
    named = NamedStep(stem="epoch_step_", number=Step(step + 1))
    if store.commit is not CommitState.COMMITTED:
        return SaveRecord(named=named)
    path = f"{name}/{COUNTERS}"
    findings: list[Finding] = []
    values: object = None
    if all(shard.path != path for shard in store.shards):
        findings.append(listed_damage(Code.SHARD_MISSING, "is missing: AutoModel stops with a FileNotFoundError", path))
    else:
        values = first_value(storage, (path,))
        if count_at(values, "step") is None and not _is_closed(storage, path):
            remedy = "resume from another checkpoint"
            findings.append(damage(Code.METADATA_INCOMPLETE, "does not show the step", path=path, remedy=remedy))
    ranks = {shard.rank for shard in store.shards if shard.rank is not None}
    world = _ranks_at_least(store, ranks)
    findings += _absent(name, sorted(set(range(world)) - ranks) if ranks else [], world)
    return SaveRecord(
        scalars=Scalars(step=count_at(values, "step")),
        content=Content.FULL,
        named=named,
        facts=(("epoch", count_at(values, "epoch") if values is not None else epoch),),
        topology=Topology(world_size=world if ranks else None, shared=not ranks, confirmed=False),
        findings=tuple(findings),
    )


def _is_closed(storage: Storage, path: str) -> bool:
    """Return whether a file cannot be read from here, which its own check reports."""
    try:
        with storage.open(path):
            return False
    except OSError:
        return True


def _ranks_at_least(store: DcpStore, ranks: set[Rank]) -> int:
    """Return the number of ranks that the names of all files show; a rank without its own slices writes none."""
    numbers = [rank + 1 for rank in ranks]
    for shard in store.shards:
        name = shard.path.rpartition("/")[2]
        writer, weights = WRITER.fullmatch(name), re.fullmatch(_WEIGHTS, name)
        if writer is not None:
            numbers.append(int(writer["rank"]) + 1)
        elif weights is not None and weights["number"]:
            numbers.append(int(weights["number"]))
    return min(max(numbers, default=0), MAX_RANKS)


def _absent(name: str, ranks: list[int], world: int) -> Iterator[Finding]:
    if ranks:
        message = (
            f"the random-number states of {counted(len(ranks), 'rank')} of {world} are missing: AutoModel stops with a "
            "FileNotFoundError"
        )
        finding = listed_damage(Code.SHARD_MISSING, message, f"{name}/{RANDOM}/rng_global_rank_{ranks[0]}.pt")
        yield replace(finding, ranks=tuple(map(Rank, ranks)))


def _with_peers(saves: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield the saves, with findings about weights and loader states that most other saves of as many ranks have.

    No record names these files.
    """
    counts: dict[int | None, Counter[str]] = {}
    totals: Counter[int | None] = Counter()
    complete = [save for save in saves if save.commit is CommitState.COMMITTED]
    for save in complete:
        world = save.topology.world_size
        counts.setdefault(world, Counter()).update(_unrecorded(save))
        totals[world] += 1
    with_ranks = any(save.topology.world_size is not None for save in complete)
    for save in saves:
        world = save.topology.world_size
        if save not in complete:
            yield save
            continue
        if world is None and with_ranks:
            yield replace(save, findings=(*save.findings, _lacks(save.name, RANDOM)))
            continue
        usual = {name for name, count in counts[world].items() if 2 * count > totals[world]}
        lacking = [_lacks(save.name, name) for name in sorted(usual - _unrecorded(save))]
        yield replace(save, findings=(*save.findings, *lacking)) if lacking else save


def _unrecorded(save: Checkpoint) -> set[str]:
    return {
        shard.path.partition("/")[2]
        for shard in save.shards
        if shard.role is ShardRole.MODEL or f"/{LOADERS}/" in shard.path
    }


def _lacks(save: str, name: str) -> Finding:
    return suspect(
        Code.SHARD_MISSING,
        "is missing, while most saves here have it",
        path=f"{save}/{name}",
        remedy="restore it from a copy, or resume from another checkpoint",
    )
