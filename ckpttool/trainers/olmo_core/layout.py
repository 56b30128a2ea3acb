"""OLMo-core's layout: `stepN/{train/rankR.pt, model_and_optim/{.metadata, __0_0.distcp, …}, .metadata.json}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, NamedStep, Topology
from ckpttool.core.domain.finding import Code, Finding, damage, in_order, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, Rank, Step, counted
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common.listed import by_rank, listed_damage, listed_shard
from ckpttool.trainers.common.saved_values import count_at, first_value
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.olmo_core import LAYOUT, MARK, RANK_STATE, SAVE, SLICES, STATES, TRAINER
from ckpttool.trainers.torch_dcp import METADATA

if TYPE_CHECKING:
    from ckpttool.core.domain.load_settings import LoadSettings
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.trainers.torch_dcp.saves import SaveRecord
    from ckpttool.trainers.torch_dcp.store import DcpStore

_MARK_LIMIT = 64 << 10
_UNFINISHED = rf"{SAVE}-tmp"
_TEMPORARY = r"tmp[a-z0-9_]{8}(?:\.tmp)?"
"""Name of a record in a save before it is renamed."""


class OlmoCoreLayout(Untracked):
    """A layout with one folder per save, whose name contains the step."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its mark, its record of slices and the state of rank 0."""
        from ckpttool.trainers.torch_dcp.saves import SaveTree

        tree = SaveTree(layout=LAYOUT.name, reading=_save_record, is_save=_saves, read_folder=_read_folder)
        inventory = tree.scan(storage, listing, options)
        unfinished = [name for name in inventory.strays if re.fullmatch(_UNFINISHED, name)]
        if not unfinished:
            return inventory
        rest = (finding for finding in inventory.findings if finding.path not in unfinished)
        strays = tuple(name for name in inventory.strays if name not in unfinished)
        return replace(inventory, strays=strays, findings=in_order((*rest, *map(_in_progress, unfinished))))

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read a record of slices that is too large for a scan, and compare the ranks' states with that of rank 0."""
        from ckpttool.trainers.torch_dcp.store import read_store_closely

        checkpoint = read_store_closely(storage, checkpoint, f"{checkpoint.name}/{SLICES}")
        findings = _of_other_saves(storage, checkpoint)
        return replace(checkpoint, findings=(*checkpoint.findings, *findings))

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is the temporary name of a save or of a record in it."""
        first, last = name.partition("/")[0], name.rpartition("/")[2]
        return re.fullmatch(_UNFINISHED, first) is not None or re.fullmatch(_TEMPORARY, last) is not None

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the record and the slices; each rank also reads its own state."""
        from ckpttool.trainers.torch_dcp.store import read_by_all

        return read_by_all(checkpoint)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents."""
        records = (f"{checkpoint.name}/{MARK}", f"{checkpoint.name}/{SLICES}/{METADATA}")
        return Members(paths=(checkpoint.name,), records=records)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the path of the save, which OLMo-core uses only if its save folder has no checkpoint."""
        from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting

        path = inventory.path_of(checkpoint.name)
        load_path = TrainerSetting(place=Place.parsed("argument:--trainer.load_path"), value=path, is_path=True)
        strategy = TrainerSetting(place=Place.parsed("argument:--trainer.load_strategy"), value="always")
        return LoadSettings(trainer=TRAINER.name, path=path, settings=(load_path, strategy), remarks=(_SAVE_FOLDER,))


_SAVE_FOLDER = (
    "OLMo-core ignores load_path if its save folder has a checkpoint, and loads the highest there: give it a new save "
    "folder."
)


def _saves(listing: Listing) -> Iterator[str]:
    return (name for name in listing.folders("step") if re.fullmatch(SAVE, name))


def _in_progress(name: str) -> Finding:
    message = "an incomplete save: OLMo-core renames the folder when the states are saved, and skips this one"
    return note(Code.IN_PROGRESS, message, path=name, remedy="if no training is running, remove it")


def _read_folder(storage: Storage, folder: str, *, sizes: bool, most: int) -> DcpStore:
    """List a save's files and read its record of slices.

    A folder with the record itself has only slices, such as exported weights.
    """
    from ckpttool.trainers.torch_dcp.store import DcpStore, read_store

    names = {entry.name for entry in storage.entries(folder)}
    if SLICES not in names:
        if METADATA in names:
            return read_store(storage, folder, sizes=sizes, most=most)
        store = DcpStore(shards=(), expected=None, commit=CommitState.UNCOMMITTED, findings=(), metadata=None)
    else:
        store = read_store(storage, f"{folder}/{SLICES}", sizes=sizes, most=most)
    findings = list(store.findings)
    states = _states(storage, f"{folder}/{STATES}", findings, sizes=sizes) if STATES in names else ()
    commit = store.commit if MARK in names else CommitState.UNCOMMITTED
    return replace(store, shards=by_rank((*store.shards, *states)), commit=commit, findings=tuple(findings))


def _states(storage: Storage, folder: str, findings: list[Finding], *, sizes: bool) -> Iterator[Shard]:
    for name, kind in sorted(storage.entries(folder)):
        match = re.fullmatch(RANK_STATE, name)
        if match is None or int(match["rank"]) >= MAX_RANKS:
            continue
        shard = Shard(
            path=f"{folder}/{name}", rank=Rank(int(match["rank"])), role=ShardRole.STATE, format=FormatName.TORCH_ZIP
        )
        yield from listed_shard(storage, shard, kind, findings, sizes=sizes)


def _save_record(storage: Storage, name: str, store: DcpStore) -> SaveRecord:
    from ckpttool.trainers.torch_dcp.saves import SaveRecord

    named = NamedStep(stem="step", number=Step(int(name.removeprefix("step"))))
    states = {shard.rank: shard.path for shard in store.shards if shard.role is ShardRole.STATE}
    first = f"{name}/{STATES}/rank0.pt"
    if store.commit is not CommitState.COMMITTED:
        return SaveRecord(named=named)
    if not states and all(shard.path.startswith(f"{name}/__") for shard in store.shards):
        return SaveRecord(named=named, content=Content.WEIGHTS_ONLY)
    if Rank(0) not in states:
        message = "is missing: OLMo-core does not treat the folder as a checkpoint"
        return SaveRecord(named=named, findings=(listed_damage(Code.SHARD_MISSING, message, first),))
    values = first_value(storage, (first,))
    step, world = count_at(values, "global_step"), count_at(values, "world_size")
    findings: list[Finding] = []
    is_ephemeral = _is_ephemeral(storage, f"{name}/{MARK}", findings)
    if step is None or not world or world > MAX_RANKS:
        message = "does not show the step and the number of ranks"
        findings.append(damage(Code.METADATA_INCOMPLETE, message, path=first, remedy="resume from another checkpoint"))
        return SaveRecord(named=named, content=_content(storage, name, store), findings=tuple(findings))
    findings += _absent(name, [rank for rank in range(world) if rank not in states], world)
    return SaveRecord(
        scalars=Scalars(step=step, tokens=count_at(values, "global_train_tokens_seen")),
        content=_content(storage, name, store),
        named=named,
        facts=(("epoch", count_at(values, "epoch")), *((("ephemeral", 1),) if is_ephemeral else ())),
        topology=Topology(world_size=world),
        expected=tuple(path for rank, path in sorted(states.items()) if rank is not None and rank < world),
        findings=tuple(findings),
    )


def _absent(name: str, ranks: list[int], world: int) -> Iterator[Finding]:
    if ranks:
        message = (
            f"the states of {counted(len(ranks), 'rank')} of {world} are missing: OLMo-core loads the state of rank 0 "
            "instead, without a warning, so these ranks continue with its random numbers"
        )
        finding = listed_damage(Code.SHARD_MISSING, message, f"{name}/{STATES}/rank{ranks[0]}.pt")
        yield replace(finding, ranks=tuple(map(Rank, ranks)))


def _is_ephemeral(storage: Storage, path: str, findings: list[Finding]) -> bool:
    """Return whether the mark shows that the trainer will remove the save after a later one.

    A mark that is not JSON, as after a power failure, is reported; OLMo-core checks only that it exists.
    """
    try:
        return parse_object(storage.small_file(path, limit=_MARK_LIMIT), where=path).get("ephemeral") is True
    except ParseError as error:
        remedy = "verify the save at level checksum, or resume from another checkpoint"
        findings.append(suspect(Code.META_UNREADABLE, error.within(path), path=path, remedy=remedy))
    except OSError as error:
        findings.append(unreadable(path, error))
    return False


def _content(storage: Storage, name: str, store: DcpStore) -> Content:
    """Return whether a save contains only weights, judged by the names of the saved values."""
    from ckpttool.trainers.torch_dcp.store import mentions

    if store.metadata is not None:
        return Content.FULL if any(value.startswith("optim.") for value in store.names) else Content.WEIGHTS_ONLY
    # A record that is too large to be read in a scan is only searched.
    return Content.FULL if mentions(storage, f"{name}/{SLICES}/{METADATA}", b"optim.") else Content.UNKNOWN


def _of_other_saves(storage: Storage, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Report rank states of another step; unreadable states are reported by the check of every file."""
    for shard in checkpoint.shards:
        if shard.role is not ShardRole.STATE or not shard.rank:
            continue
        step = count_at(first_value(storage, (shard.path,)), "global_step")
        if step is not None and checkpoint.scalars.step not in {None, step}:
            message = f"is a state of step {step}, while that of rank 0 is of step {checkpoint.scalars.step}"
            yield replace(
                suspect(Code.STEP_DISAGREES, message, path=shard.path, remedy="resume from another checkpoint"),
                ranks=(shard.rank,),
            )
