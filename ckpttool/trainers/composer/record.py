"""The record in a save of Composer: its counters, its contents, and the position of its data set.

Source:
    `composer/core/state.py` and `composer/core/time.py` of mosaicml 0.32.1, and saves that it wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import CommitState, Content, NamedStep
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import Facts, Scalars
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import plain_values, value_at
from ckpttool.core.storage.base import ByteSource, Storage
from ckpttool.trainers.common.saved_values import count_at
from ckpttool.trainers.composer import RANKS, TIME, batch_in
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.saves import SaveRecord, progress
from ckpttool.trainers.torch_dcp.store import DcpStore, mentions

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIMIZER = "state.optimizers."
_DATA = "state.dataset_state.train"
_COUNTERS = {
    "step": f"{TIME}batch",
    "samples": f"{TIME}sample",
    "tokens": f"{TIME}token",
    "epoch": f"{TIME}epoch",
    "in_epoch": f"{TIME}batch_in_epoch",
    "samples_in_epoch": f"{TIME}sample_in_epoch",
    RANKS: "state.metadata.world_size",
    "loader_batch": "state.metadata.train_dataloader_batch_size",
}
"""Names of the counters in a save, by ours; `Timestamp.iteration` stays 0 unless an `iteration_length` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The small values in one save; None for missing values."""

    numbers: tuple[tuple[str, int], ...] = ()
    """The counters that the save has, by our names."""
    content: Content = Content.UNKNOWN
    has_data_state: bool | None = None
    """Whether the data set saved its position; None if unknown."""

    def number(self, name: str) -> int | None:
        """Return a counter; None if it is missing."""
        return dict(self.numbers).get(name)

    @property
    def step(self) -> int | None:
        """Batches over all ranks: one step of the optimizer each."""
        return self.number("step")

    @property
    def scalars(self) -> Scalars:
        """The progress.

        The batch size is that of the loader on each rank, so the number of ranks multiplies it. Tokens are 0 if the
        data set does not count any.
        """
        ranks, batch = self.number(RANKS), self.number("loader_batch")
        size = None if ranks is None or batch is None else ranks * batch
        samples = self.number("samples")
        return Scalars(
            step=self.step, samples=samples, tokens=self.number("tokens") or None, global_batch_size=size or None
        )

    @property
    def facts(self) -> Facts:
        """The facts to show."""
        return ("epoch", self.number("epoch")), (RANKS, self.number(RANKS))


def read_file(source: ByteSource) -> Record:
    """Read the record of a save in one file; empty if the file is not a save of Composer.

    Raises:
        OSError: The disk could not be read.
    """
    try:
        tree = plain_values(source)
    except BrokenPickleError:
        return Record()
    if not isinstance(tree, dict) or not isinstance(value_at(tree, "state"), dict):
        return Record()
    numbers = {name: count_at(tree, *_path(key)) for name, key in _COUNTERS.items()}
    return Record(
        numbers=tuple((name, number) for name, number in numbers.items() if number is not None),
        content=_content(tree["state"], step=numbers["step"]),
        has_data_state=value_at(tree, "state", "dataset_state", "train") is not None,
    )


def _path(key: str) -> list[str]:
    return key.split(".")


def _content(state: dict[object, object], *, step: int | None) -> Content:
    """Return whether a save has only weights, by design of `save_weights_only` or because the optimizer was left out.

    Composer saves its own facts with every save, so a file without these and without a step may be any file.
    """
    if not state.get("model") or (step is None and "metadata" not in state):
        return Content.UNKNOWN
    return Content.FULL if state.get("optimizers") and step is not None else Content.WEIGHTS_ONLY


def read_folder(storage: Storage, name: str, store: DcpStore) -> Record:
    """Return the record of a save that is a folder.

    Args:
        storage: The tree.
        name: The folder.
        store: The record of its slices.
    """
    if store.metadata is None:
        # A record that is too large to be read in a scan is only searched.
        is_whole = store.commit is CommitState.COMMITTED
        if is_whole and mentions(storage, f"{name}/{METADATA}", _OPTIMIZER.encode()):
            return Record(content=Content.FULL)
        return Record()
    keys: Mapping[str, tuple[str, ...]] = {own: (key,) for own, key in _COUNTERS.items()}
    numbers = progress(storage, name, store, keys)
    names = store.names
    has_counters = any(each.startswith(TIME) for each in names)
    has_optimizer = any(each.startswith(_OPTIMIZER) for each in names)
    states = [each for each in names if each == _DATA or each.startswith(f"{_DATA}.")]
    return Record(
        numbers=tuple(numbers.items()),
        content=Content.FULL if has_optimizer and has_counters else Content.WEIGHTS_ONLY,
        has_data_state=any(each != _DATA for each in states),  # without a state, None is saved under the name itself
    )


def save_record(storage: Storage, name: str, store: DcpStore) -> SaveRecord:
    """Return the facts in a save that is a folder."""
    record = read_folder(storage, name, store)
    return SaveRecord(scalars=record.scalars, content=record.content, named=named(name), facts=record.facts)


def named(name: str) -> NamedStep | None:
    """Return the step in a name of Composer's own form; None for a name that the user chose."""
    batch = batch_in(name)
    return None if batch is None else NamedStep(stem="ba", number=Step(batch))
