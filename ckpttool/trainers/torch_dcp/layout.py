"""Layout of any tree of torch.distributed.checkpoint saves: `step_000015/{.metadata, __0_0.distcp}`, with any names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, Content, Inventory
from ckpttool.core.domain.finding import Code, Finding, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.trainers.base import Members, Refusal, ScanOptions
from ckpttool.trainers.common import TRACKER, TRACKERS
from ckpttool.trainers.common.tracker_file import lacks_its_saves
from ckpttool.trainers.common.written_together import Untracked
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.torch_dcp import LAYOUT, METADATA, TRAINER, UNFINISHED, is_store

if TYPE_CHECKING:
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.trainers.torch_dcp.saves import SaveRecord
    from ckpttool.trainers.torch_dcp.store import DcpStore

_OPTIMIZER = ("optim", "optimizer", "optimizers")


class FoldersOfSlices(Untracked):
    """Base of layouts in which each save is one DCP folder."""

    def with_own_records(self, storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
        """Read a record that is too large for a scan."""
        from ckpttool.trainers.torch_dcp.store import read_store_closely

        return read_store_closely(storage, checkpoint, checkpoint.name)

    def is_unfinished(self, name: str) -> bool:
        """Return whether this is the temporary name of the record."""
        return name.rpartition("/")[2] == UNFINISHED

    def read_by_all(self, checkpoint: Checkpoint) -> ReadByAll:
        """Return the record and the slices.

        Any slice file may contain a value that is not divided over ranks.
        """
        from ckpttool.trainers.torch_dcp.store import read_by_all

        return read_by_all(checkpoint)

    def members(self, checkpoint: Checkpoint) -> Members | Refusal:
        """Return the save's own folder with its contents."""
        return Members(paths=(checkpoint.name,), records=(f"{checkpoint.name}/{METADATA}",))


class TorchDcpLayout(FoldersOfSlices):
    """A layout with one folder per save; the application chooses its name and contents."""

    name = LAYOUT.name
    title = TRAINER.title
    signs = LAYOUT

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List each save's files, and read its record and the counters that the record refers to."""
        from ckpttool.trainers.torch_dcp.saves import SaveTree

        inventory = SaveTree(layout=TRAINER.name, reading=_save_record, is_save=_saves).scan(storage, listing, options)
        if not lacks_its_saves({entry.name for entry in listing.entries}):
            return inventory
        saves = tuple(replace(save, findings=(*save.findings, _renamed(save.name))) for save in inventory.checkpoints)
        return replace(inventory, checkpoints=saves)

    def load(self, inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings | Refusal:
        """Return settings for the folder.

        The application must name it, because torch does not choose a folder.
        """
        path = inventory.path_of(checkpoint.name)
        setting = TrainerSetting(place=Place.parsed("code:dcp.load(..., checkpoint_id)"), value=path, is_path=True)
        return LoadSettings(trainer=TRAINER.name, path=path, settings=(setting,))


def _renamed(name: str) -> Finding:
    """Report a save next to a trainer's tracker if that trainer does not use the save's name."""
    trainers = TRACKERS[TRACKER]
    message = (
        f"{TRACKER} beside it is a tracker of {trainers}, and none of them uses such a name: the folder was renamed, "
        "and none of them loads it by this name"
    )
    remedy = (
        "give the folder its original name again (Megatron-LM's iter_0000100 for step 100); if your own script "
        f"saved it, move {TRACKER} out of the tree"
    )
    return unknown(Code.NOT_LOADABLE, message, path=name, remedy=remedy)


def _saves(listing: Listing) -> Iterator[str]:
    """Yield all folders that are stores.

    A folder that cannot be listed may be a save.
    """
    for entry in listing.entries:
        if entry.kind is not Kind.FOLDER or entry.name == OWN_FOLDER:
            continue
        try:
            if is_store(listing.names_in(entry.name)):
                yield entry.name
        except OSError:
            yield entry.name


def _save_record(storage: Storage, name: str, store: DcpStore) -> SaveRecord:
    """Return the counters under names that applications usually use.

    All other contents are application-specific.
    """
    from ckpttool.core.decide.steps import read_name
    from ckpttool.trainers.torch_dcp.saves import BATCHES, SAMPLES, STEPS, SaveRecord, progress

    keys: dict[str, Iterable[str]] = {"step": STEPS, "samples": SAMPLES, "batch": BATCHES}
    numbers = progress(storage, name, store, keys)
    has_optimizer = any(part in _OPTIMIZER for tensor_name in store.names for part in tensor_name.split(".")[:2])
    return SaveRecord(
        scalars=Scalars(
            step=numbers.get("step"),
            samples=numbers.get("samples"),
            global_batch_size=numbers.get("batch") or None,
        ),
        content=Content.FULL if has_optimizer else Content.UNKNOWN,
        named=read_name(name),
    )
