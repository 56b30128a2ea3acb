"""A tree in which each save is one folder of torch.distributed.checkpoint, with the facts in the save's record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING, Protocol

from ckpttool.core.decide.steps import NAME_REMEDY
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, NamedStep, StepSource, Topology
from ckpttool.core.domain.finding import Finding, in_order
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.scalars import Facts, Scalars
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Step
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.common.listed import UNFINISHED_MARK, marked_unfinished, not_finished, one_run, stray
from ckpttool.trainers.listing import numbers_in
from ckpttool.trainers.torch_dcp.store import AT_A_SCAN, OF_THE_NEWEST, DcpStore, read_store, value_slices, values_of

if TYPE_CHECKING:
    from ckpttool.trainers.base import ScanOptions
    from ckpttool.trainers.listing import Listing

_NEWEST = 4
"""Number of saves whose records a scan reads even if they are large.

A choice rarely goes further back.
"""

STEPS = frozenset({"step", "global_step", "iteration", "iter", "num_steps"})
SAMPLES = frozenset({"consumed_samples", "samples_seen", "consumed_train_samples"})
BATCHES = frozenset({"global_batch_size", "gbs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRecord:
    """The facts about the training run in a save's record."""

    scalars: Scalars = Scalars()
    content: Content = Content.UNKNOWN
    named: NamedStep | None = None
    """The step in the save's name."""
    facts: Facts = ()
    topology: Topology = Topology(shared=True)
    expected: tuple[str, ...] = ()
    """Required files beyond those in the record of the slices, sorted."""
    findings: tuple[Finding, ...] = ()


Reading = Callable[[Storage, str, DcpStore], SaveRecord]
"""Returns the facts in a save, given the tree, the save's folder, and its record."""


class ReadFolder(Protocol):
    """Reader of a save's folder."""

    def __call__(self, storage: Storage, folder: str, *, sizes: bool, most: int) -> DcpStore:
        """List the files and read the record, unless the record is larger than the limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTree:
    """A kind of tree, defined by its saves and their records."""

    layout: str
    reading: Reading
    is_save: Callable[[Listing], Iterable[str]]
    """Returns the names of the folders that are saves."""
    read_folder: ReadFolder = read_store
    """Lists a save's files and reads its record."""

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List the saves, with their files and records.

        Args:
            storage: The tree.
            listing: The names in its root.
            options: Data to collect in addition to the names.
        """
        names = sorted(self.is_save(listing))
        newest = frozenset(nlargest(_NEWEST, names, key=numbers_in))
        cut_off = marked_unfinished(listing, names)
        saves = list(map_waiting(partial(self._checkpoint, storage, options, newest), names))
        saves = [_cut_off(save) if isinstance(save, Checkpoint) and save.name in cut_off else save for save in saves]
        checkpoints = sorted(
            (save for save in saves if isinstance(save, Checkpoint)),
            key=lambda save: (save.step is not None, save.step or 0, save.name),
        )
        withheld = tuple(save for save in saves if isinstance(save, Finding))
        known_names = {OWN_FOLDER, *names}
        stray_names = (entry.name for entry in listing.entries if entry.name not in known_names)
        strays = tuple(name for name in stray_names if name.removesuffix(UNFINISHED_MARK) not in cut_off)
        return Inventory(
            root=storage.root,
            layout=self.layout,
            checkpoints=tuple(checkpoints),
            runs=one_run(checkpoints),
            findings=in_order((*withheld, *map(stray, strays))),
            unlisted=tuple(finding.path for finding in withheld if finding.path is not None),
            strays=strays,
        )

    def _checkpoint(
        self, storage: Storage, options: ScanOptions, newest: frozenset[str], name: str
    ) -> Checkpoint | Finding:
        most = OF_THE_NEWEST if name in newest or not numbers_in(name) else AT_A_SCAN
        try:
            store = self.read_folder(storage, name, sizes=options.sizes, most=most)
        except OSError as error:
            return unreadable(name, error)
        content = self.reading(storage, name, store)
        number = None if content.named is None or content.named.is_free else content.named.number
        step = number if content.scalars.step is None else Step(content.scalars.step)
        source = StepSource.NAME if content.scalars.step is None else StepSource.CONTENT
        return Checkpoint(
            name=name,
            facts=content.facts,
            scalars=content.scalars,
            step=step,
            step_source=StepSource.UNKNOWN if step is None else source,
            named=content.named,
            step_remedy=NAME_REMEDY,
            shards=store.shards,
            topology=content.topology,
            format=next((shard.format for shard in store.shards), FormatName.TORCH_ZIPS),
            expected=None if store.expected is None else (*store.expected, *content.expected),
            commit=store.commit,
            content=content.content if store.commit is CommitState.COMMITTED else Content.UNKNOWN,
            findings=(*store.findings, *content.findings),
        )


def _cut_off(save: Checkpoint) -> Checkpoint:
    findings = (*save.findings, not_finished(save.name))
    return replace(save, commit=CommitState.UNCOMMITTED, content=Content.UNKNOWN, findings=findings)


def progress(storage: Storage, folder: str, store: DcpStore, keys: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return integers that a save contains in addition to its tensors.

    Args:
        storage: The tree.
        folder: The folder of the save.
        store: The record of the save.
        keys: The possible names of each result: the complete name, or its last part.

    Returns:
        The numbers that have exactly one matching name; a boolean does not count as a number.
    """
    places = value_slices(store)
    places_by_key = {
        key: fitting[0]
        for key, names in keys.items()
        if len(fitting := [place for name, place in places.items() if {name, name.rpartition(".")[2]} & {*names}]) == 1
    }
    values = values_of(storage, folder, {place.name: place for place in places_by_key.values()})
    numbers = {key: values.get(place.name) for key, place in places_by_key.items()}
    return {key: value for key, value in numbers.items() if type(value) is int and value >= 0}
