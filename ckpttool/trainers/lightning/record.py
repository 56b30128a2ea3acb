"""The record in a Lightning save: its step, its position in the epoch, and its contents.

Source:
    `dump_checkpoint` in trainer/connectors/checkpoint_connector.py and `on_save_checkpoint` in loops/fit_loop.py of
    Lightning 2.6; and real saves by Lightning.
"""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import plain_values, value_at
from ckpttool.core.storage.base import ByteSource
from ckpttool.trainers.common.saved_values import count_at

_FIT = ("loops", "fit_loop")
_BATCHES = (*_FIT, "epoch_loop.batch_progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The small values in one save; None for missing values."""

    step: int | None = None
    """`global_step`: updates of all optimizers together."""
    epoch: int | None = None
    batches: int | None = None
    """Batches that each rank had begun since the start of the training run."""
    in_epoch: int | None = None
    """The number of these batches in the current epoch."""
    ends_epoch: bool = False
    """Whether the last of these batches was the last batch of the epoch."""
    counts_epoch: bool = False
    """Whether the end of the epoch had been counted when the save was made; Lightning counts it after the last step."""
    optimizers: int | None = None
    """Number of optimizers whose updates count in `step`."""
    has_loader_state: bool = False
    """Whether the data loader saved its position."""
    content: Content = Content.UNKNOWN

    @property
    def epochs_over(self) -> int | None:
        """Number of epochs that a resumed run considers complete before its first step; None if unknown.

        Source: runs of Lightning 2.6.6: a loader whose state was taken at an epoch's last batch, before the epoch was
        counted, yields no batch of the next epoch either.
        """
        if self.epoch is None or not self.ends_epoch:
            return self.epoch
        return self.epoch + 1 + (self.has_loader_state and not self.counts_epoch)

    @property
    def place(self) -> tuple[int | None, ...]:
        """The point of the training run at which the save was made."""
        return self.step, self.epoch, self.batches


def read_record(source: ByteSource, *, sharded: bool) -> Record:
    """Read the record of a save; empty if the save has no record.

    Args:
        source: The file, or the `meta.pt` of a folder.
        sharded: Whether the optimizer state is in other files, so that this file need not contain it.

    Raises:
        OSError: The disk could not be read.
    """
    try:
        tree = plain_values(source)
    except BrokenPickleError:
        return Record()
    states = value_at(tree, "optimizer_states")
    # A folder's optimizer states are in its shards, so its schedulers decide; a weights-only save has neither.
    scheduler = value_at(tree, "lr_schedulers") if sharded else states
    step, epoch = count_at(tree, "global_step"), count_at(tree, "epoch")
    processed = count_at(tree, *_FIT, "epoch_progress", "current", "processed")
    content = Content.UNKNOWN
    if step is not None:
        content = Content.WEIGHTS_ONLY if scheduler is None else Content.FULL
    return Record(
        step=step,
        epoch=epoch,
        counts_epoch=processed is not None and epoch is not None and processed > epoch,
        batches=count_at(tree, *_BATCHES, "total", "ready"),
        in_epoch=count_at(tree, *_BATCHES, "current", "ready"),
        ends_epoch=value_at(tree, *_BATCHES, "is_last_batch") is True,
        optimizers=len(states) if isinstance(states, list) else None,
        has_loader_state=bool(value_at(tree, *_FIT, "state_dict", "combined_loader")),
        content=content,
    )
