"""Exact resume from a save: weights, optimizer, data and random numbers continue bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch.utils.data import Dataset
from xxhash import xxh3_64_intdigest

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.saving import SaveLayout, SaveProgress
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.errors import CkptToolError, IncompleteError, NothingToResumeError, UsageError
from ckpttool.core.formats.strict_json import OWN_MEMORY, ParseError, get_int, get_str, parse_object
from ckpttool.core.records import OWN_STATE, SealPlace, births_begin
from ckpttool.core.records.birth import recorded_shard
from ckpttool.core.storage import open_storage
from ckpttool.core.write.stream import FileDigest
from ckpttool.guard import randomness
from ckpttool.guard.agree import Ranks
from ckpttool.guard.nested import map_tensors
from ckpttool.guard.objects import Objects, Tree
from ckpttool.guard.state_tree import UnreadableState, read
from ckpttool.guard.tensor_file import tensors_in
from ckpttool.guard.writer import STATE_SCHEMA

Batch_co = TypeVar("Batch_co", covariant=True)
Item_co = TypeVar("Item_co", covariant=True)

_READ_BYTES = 8 << 20
_STATE_LIMIT = ByteCount(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The save to continue from, as chosen by rank 0 for all ranks."""

    root: str
    """Path of the checkpoint tree."""
    file: str
    """Name of rank 0's file."""
    left_out: int = 0
    """Number of batches after the save that the plan skips."""


class Resumed:
    """The point at which a training run continues."""

    def __init__(self, shard: _Shard | None, *, rng: Tree | None = None, left_out: int = 0) -> None:
        """Store the loaded state, or None if there is no save and training starts from scratch."""
        progress = None if shard is None else shard.progress
        self.checkpoint = None if shard is None else shard.checkpoint
        """Name of the save, or None if training starts from scratch."""
        self.step = 0 if progress is None else int(progress.step)
        """Number of batches consumed so far, whether their updates were applied or dropped."""
        self.applied = 0 if progress is None else progress.applied
        """Number of updates applied so far."""
        self.epoch = 1 if progress is None else progress.epoch
        """The epoch in which training continues, from 1."""
        self.is_checked = shard is not None and shard.is_checked
        """Whether every loaded byte matches a certificate or a seal."""
        self.left_out = left_out
        """Number of bad batches after the save that the plan skips. `batches` still has to skip them."""
        self._rng = rng

    def batches(self, loader: Iterable[Batch_co]) -> Iterator[Batch_co]:
        """Iterate over a loader. The first iteration covers the rest of the epoch, with the saved random numbers.

        The batches that the plan skips are loaded and discarded first, even in the next epoch.

        Creating an iterator draws random numbers, so it is created before the generators are restored. A loader whose
        `__iter__` is a generator creates nothing before its first batch, so its draws are repeated then.
        """
        iterator = iter(loader)
        if self._rng is not None:
            randomness.restore(self._rng)
            self._rng = None
        for _ in islice(iterator, self.left_out):
            self.left_out -= 1
        return iterator


class Indexed(Protocol[Item_co]):
    """A data set with an index for each item."""

    def __getitem__(self, index: int, /) -> Item_co: ...

    def __len__(self) -> int: ...


class SeededByIndex(Dataset[Item_co], Generic[Item_co]):
    """A data set whose random augmentation depends only on seed, epoch and index, not on the worker.

    No checkpoint contains the random-number state of workers, so without this class a resumed run augments differently.
    """

    def __init__(self, dataset: Indexed[Item_co], seed: int) -> None:
        """Wrap a data set. Call `set_epoch` before each epoch, as with a sampler."""
        self._dataset = dataset
        self._seed = seed
        self._epoch = 1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the random numbers. Workers that outlive an epoch do not see the change."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Item_co:
        """Return an item created with its own random numbers. The random-number state of the process is restored."""
        import random

        import numpy as np

        before = randomness.states(devices=False)
        seed = xxh3_64_intdigest(f"{self._seed} {self._epoch} {index}".encode())
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the generator that old code draws from
        try:
            return self._dataset[index]
        finally:
            randomness.restore(before)


def resume(
    objects: Objects,
    layout: SaveLayout,
    choose: Callable[[int], Chosen | None],
    *,
    fresh_ok: bool,
    group: Any = None,  # noqa: ANN401  a process group, which a torch without distributed lacks
) -> Resumed:
    """Load a save into the objects of a training run. Every rank must call it.

    Args:
        objects: The objects of the run. After an error they may be partially loaded.
        layout: The layout of the save.
        choose: Called only on rank 0 with the number of ranks. Returns None if there is no save.
        fresh_ok: Start from scratch if there is no save.
        group: The ranks of the training run, or None for all.

    Raises:
        NothingToResumeError: There is nothing to continue from.
        CkptToolError: A rank could not load the save. Every rank raises the error of that rank.
    """
    ranks = Ranks(group, objects.device)
    chosen = _for_all(ranks, group, lambda: choose(ranks.count))
    if chosen is None:
        if not fresh_ok:
            raise NothingToResumeError("there is no checkpoint to resume from; a new training passes fresh_ok=True")
        return Resumed(None)
    restored = _on_every_rank(ranks, group, lambda: _read(layout, chosen, ranks))
    if objects.guard is not None and restored.tree["guard"] is None:
        objects.guard.step = restored.progress.step  # it has no memory, but continues the count from here
    _on_every_rank(ranks, group, lambda: objects.load(restored.tree))
    randomness.restore(restored.tree["rng"])
    if objects.guard is not None:
        objects.guard.tell(
            GuardEventKind.RESUMED,
            step=restored.progress.step,
            checkpoint=restored.checkpoint,
            path=restored.path,
            checked=restored.is_checked,
            left_out=chosen.left_out,
        )
    rng = None if objects.loader is None else restored.tree["rng"]
    return Resumed(restored, rng=rng, left_out=chosen.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    checkpoint: str
    path: str
    tree: Tree
    progress: SaveProgress
    is_checked: bool


def _read(layout: SaveLayout, chosen: Chosen, ranks: Ranks) -> _Shard:
    """Read this rank's file, and compare each byte with its record before using it."""
    label, rank = layout.parsed(chosen.file), Rank(ranks.own)
    if label is None:
        raise UsageError(f"{chosen.file!r} is not a file of a save by ckpttool.checkpoint_writer")
    path, name = layout.shard(label, rank), layout.checkpoint(label)
    place = SealPlace(
        path=layout.manifest(label),
        layout=layout.name,
        checkpoint=name,
        prefix=label.prefix,
        births=births_begin(label.prefix, name),
    )
    seal = recorded_shard(open_storage(chosen.root), place, rank, path)
    try:
        content, digest = _content(f"{chosen.root}/{path}")
    except OSError as error:
        raise IncompleteError(f"{path} cannot be read: {error.strerror or error}") from error
    streamed = digest.streamed()
    if seal is not None and (seal.size, seal.xxh3_128) != (streamed.size, streamed.xxh3_128):
        raise IncompleteError(
            f"{path} differs from the written file ({streamed.size} bytes with the digest {streamed.xxh3_128}, "
            f"recorded {seal.size} with {seal.xxh3_128}): ckpttool resolve --level checksum chooses another, and "
            "with --format json it writes a plan for resume_training"
        )
    try:
        tree, progress = _parsed(layout, tensors_in(content, path), ranks.count)
    except (ValueError, UnreadableState) as error:
        raise UsageError(f"{path} does not contain a training saved by ckpttool.checkpoint_writer: {error}") from error
    return _Shard(checkpoint=name, path=path, tree=tree, progress=progress, is_checked=seal is not None)


def _content(path: str) -> tuple[memoryview, FileDigest]:
    """Read a file into memory, and compute its digest at the same time."""
    digest = FileDigest()
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, 2)
        file.seek(0)
        content = torch.empty(size, dtype=torch.uint8).numpy().data
        at = 0
        while at < size and (got := file.readinto(content[at : at + _READ_BYTES])):
            digest.feed(content[at : at + got])
            at += got
    return content[:at], digest


def _parsed(layout: SaveLayout, tensors: dict[str, Tensor], world_size: int) -> tuple[Tree, SaveProgress]:
    if OWN_STATE not in tensors:
        raise ParseError(f"there is no {OWN_STATE}")
    text = tensors[OWN_STATE].numpy().tobytes()
    document = parse_object(text, where=OWN_STATE, limit=_STATE_LIMIT, most_memory=OWN_MEMORY)
    if (schema := get_str(document, "schema")) != STATE_SCHEMA:
        raise ParseError(f"expected {STATE_SCHEMA}, found {schema!a:.80}")
    if (saved_by := get_int(document, "world_size")) != world_size:
        raise UsageError(
            f"it was saved on {saved_by} ranks and would be resumed on {world_size}: an exact resume needs the same "
            "number of ranks"
        )
    scalars = {name: tensor.item() for name, tensor in tensors.items() if "." not in name and tensor.numel() == 1}
    progress = layout.progress(scalars)
    tree = read(document["tree"], tensors)
    if progress is None or not isinstance(tree, dict):
        raise ParseError("it does not contain the step of the training")
    return _own_memory(tree), progress


_COPIED_BY_TORCH = ("model", "optimizer", "rng")


def _own_memory(tree: Tree) -> Tree:
    """Copy the parts that training continues to use, so that the complete file can be freed."""

    def own(value: object) -> object:
        copies: dict[int, Tensor] = {}  # one copy per tensor, wherever it occurs

        def copy(tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            return copies[id(tensor)]

        return map_tensors(value, copy)

    return {key: value if key in _COPIED_BY_TORCH else own(value) for key, value in tree.items()}


Answer = TypeVar("Answer")


def _for_all(ranks: Ranks, group: Any, ask: Callable[[], Answer]) -> Answer:  # noqa: ANN401  as in `resume`
    """Run a function on rank 0, and return the result on every rank. An error is raised on every rank."""
    if ranks.count == 1:
        return ask()
    answers: list[Any] = [None]
    if ranks.own == 0:
        try:
            answers = [ask()]
        except CkptToolError as error:
            answers = [error]
        except Exception as error:  # noqa: BLE001  after any error, the others must not wait for this rank
            answers = [IncompleteError(f"rank 0 could not choose: {type(error).__name__}: {error}")]
    distributed.broadcast_object_list(answers, src=0, group=group)
    if isinstance(answers[0], CkptToolError):
        raise answers[0]
    return cast("Answer", answers[0])


def _on_every_rank(ranks: Ranks, group: Any, work: Callable[[], Answer]) -> Answer:  # noqa: ANN401  as in `resume`
    """Run a function on every rank. An error on one rank is raised on all, so that no rank waits for another."""
    if ranks.count == 1:
        return work()
    done: Answer | None = None
    error: Exception | None = None
    try:
        done = work()
    except Exception as caught:  # noqa: BLE001  after any error, the others must not wait for this rank
        error = caught
    errors: list[str | None] = [None] * ranks.count
    distributed.all_gather_object(errors, None if error is None else f"{type(error).__name__}: {error}", group=group)
    if error is not None:
        raise error
    for rank, message in enumerate(errors):
        if message is not None:
            raise IncompleteError(f"rank {rank} could not load its part: {message}")
    return cast("Answer", done)
