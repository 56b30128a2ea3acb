"""Combination of the contents of a checkpoint's shards into one row per tensor, with disagreements between ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.contents import (
    Contents,
    ElementStats,
    FileRow,
    Opened,
    ScalarRow,
    SealedDigest,
    Shape,
    TensorRow,
    Value,
    elements_in,
    is_selected,
)
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.units import ByteCount, Rank

_UNCOUNTED = frozenset({DType.STRING, DType.OPAQUE})
"""Types whose shape does not determine the number of bytes."""

_MOMENTS = frozenset(
    {"accum", "adam_m", "adam_v", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "moment1", "moment2", "moments"}
    | {"momentum", "momentum_buffer", "square_avg"}
)
_STATE = frozenset(
    {"accu_grads", "opt_state", "optim", "optimizer", "optimizer_state", "optimizer_state_dict", "optimizer_states"}
)
WEIGHTS = "weights"
_SHARED = Rank(-1)
"""Placeholder rank for a file that all ranks share."""


def kind_of(name: str) -> str:
    """Return a tensor's kind, derived from its name: `weights`, or the state of an optimizer.

    The names of optimizer states are searched for between dots, where every trainer puts them.
    """
    parts = re.split(r"[./]", whole_name(name))
    moment = next((part for part in parts if part in _MOMENTS), None)
    return moment or ("optimizer state" if not _STATE.isdisjoint(parts) else WEIGHTS)


def whole_name(name: str) -> str:
    """Return the tensor name of a slice, without ` (part 1 of 2)` at its end."""
    return _PART.sub("", name)


_PART = re.compile(r" \(part [0-9]{1,9} of [0-9]{1,9}\)$")


def as_counted(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts names in natural order: `layers.2` before `layers.10`."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((0, int(part), "") if at % 2 else (1, 0, part) for at, part in enumerate(parts))


class Gathering:
    """Collector of the contents of shards, in any order. It stores only the data for the rows."""

    def __init__(self, patterns: Sequence[str] = (), seals: Mapping[str, ShardSeal] | None = None) -> None:
        self._patterns = patterns
        self._seals = seals or {}
        self._files: list[FileRow] = []
        self._values: list[tuple[Rank, str, tuple[tuple[str, Value], ...]]] = []
        self._entries: dict[str, tuple[TensorEntry, ...]] = {}
        """Rows by schema. Ranks with the same schema share the rows."""
        self._holders: dict[str, list[Rank]] = defaultdict(list)
        self._stats: dict[str, ElementStats] = {}

    def add(self, opened: Opened) -> None:
        """Add a shard."""
        rank = _SHARED if opened.rank is None else opened.rank
        self._entries.setdefault(opened.schema, opened.entries)
        self._holders[opened.schema].append(rank)
        self._values.append((rank, opened.path, opened.values))
        self._files.append(_file(opened, self._seals.get(opened.path)))
        for entry, stats in zip(opened.entries, opened.stats, strict=False):
            if stats is not None:
                stat = self._stats.get(entry.name)
                self._stats[entry.name] = stats if stat is None else stat.join(stats)

    def contents(
        self,
        inventory: Inventory,
        checkpoint: Checkpoint,
        *,
        file: str | None,
        findings: Iterable[Finding],
    ) -> Contents:
        """Combine the collected contents.

        Args:
            inventory: The tree.
            checkpoint: The checkpoint of the shards.
            file: The path of the file, if only one was requested.
            findings: The problems of the shards.
        """
        rows = self._rows()
        selected = [row for row in rows if is_selected(row.name, self._patterns)]
        return Contents(
            inventory=inventory,
            checkpoint=checkpoint.name,
            step=checkpoint.step,
            file=file,
            files=tuple(sorted(self._files, key=lambda row: (_SHARED if row.rank is None else row.rank, row.path))),
            tensors=tuple(selected),
            left_out=len(rows) - len(selected),
            parameters=sum(row.elements for row in selected if _is_parameter(row)),
            scalars=tuple(self._scalars()),
            findings=tuple(findings),
        )

    def _rows(self) -> list[TensorRow]:
        variants: dict[str, dict[tuple[str, Shape, int], list[int]]] = defaultdict(lambda: defaultdict(list))
        holders = [sorted(ranks) for _, ranks in sorted(self._holders.items())]
        for index, schema in enumerate(sorted(self._holders)):
            for entry in self._entries[schema]:
                indices_here = variants[entry.name][entry.dtype.value, entry.shape, _bytes_of(entry)]
                if index not in indices_here:  # a torch file may have two tensors under one name
                    indices_here.append(index)
        shared: dict[tuple[int, ...], tuple[tuple[Rank, ...], int]] = {}

        def held_by(indices: Iterable[int]) -> tuple[tuple[Rank, ...], int]:
            key = tuple(indices)
            if key not in shared:
                ranks = [rank for index in key for rank in holders[index]]
                shared[key] = tuple(sorted({rank for rank in ranks if rank != _SHARED})), len(ranks)
            return shared[key]

        rows = []
        for name in sorted(variants, key=as_counted):
            ordered = sorted(variants[name].items(), key=lambda item: (-held_by(item[1])[1], item[0]))
            (dtype, shape, nbytes), _ = ordered[0]
            ranks, files = held_by(sorted({index for _, indices in ordered for index in indices}))
            minority = tuple((variant[0], variant[1], held_by(indices)[0]) for variant, indices in ordered[1:])
            row = TensorRow(
                name=name,
                dtype=dtype,
                shape=shape,
                nbytes=ByteCount(nbytes),
                ranks=ranks,
                files=files,
                others=minority,
                stats=self._stats.get(name),
            )
            rows.append(row)
        return rows

    def _scalars(self) -> Iterable[ScalarRow]:
        # By their text: to a dictionary True is 1, and NaN does not equal NaN.
        by_value: dict[str, dict[str, list[tuple[Rank, Value]]]] = defaultdict(lambda: defaultdict(list))
        for rank, _, values in sorted(self._values, key=itemgetter(0, 1)):
            for name, value in values:
                by_value[name][repr(value)].append((rank, value))
        for name in sorted(by_value, key=lambda name: (name.count("."), as_counted(name))):
            most, *rest = (
                places for _, places in sorted(by_value[name].items(), key=lambda item: (-len(item[1]), item[0]))
            )
            variants = ((places[0][1], tuple(rank for rank, _ in places if rank != _SHARED)) for places in rest)
            yield ScalarRow(name=name, value=most[0][1], others=tuple(variants))


def _file(opened: Opened, seal: ShardSeal | None) -> FileRow:
    return FileRow(
        path=opened.path,
        rank=opened.rank,
        format=opened.format,
        producer=opened.producer,
        metadata=opened.metadata,
        nbytes=opened.nbytes,
        tensors=len(opened.entries),
        unread=opened.unread,
        checksum=opened.checksum,
        seal=None if seal is None else SealedDigest(xxh3_128=seal.xxh3_128, first_seen=seal.first_seen),
    )


def _bytes_of(entry: TensorEntry) -> int:
    """Return a tensor's size in bytes, even if the file does not show where the bytes are."""
    return entry.nbytes if entry.dtype in _UNCOUNTED else elements_in(entry.shape) * entry.dtype.bits // 8


def _is_parameter(row: TensorRow) -> bool:
    return (
        row.elements > 1 and row.dtype[0] in "FBHC" and row.dtype != DType.BOOL.value and kind_of(row.name) == WEIGHTS
    )
