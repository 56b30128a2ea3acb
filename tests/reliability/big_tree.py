"""A tree of thousands of ranks, and faults planted in it, each with what must be said of it and where."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from tests.support.trees import Fmt, Tensor, shard_bytes, training_scalars

PREFIX = "llama2_7b"
EPOCHS = (10, 20)
"""Older and newer save, of two steps an epoch."""
STAGES = 4
_OWN = b"\1OWNDATA"
"""In place of what each rank has for itself."""
_BIG = 2_048
"""Elements: two pages."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault."""

    paths: tuple[str, ...]
    """Every one of which must be named."""
    codes: frozenset[str]
    """One of which must be what is said."""
    also: frozenset[str] = frozenset()
    """What may be named because of it: nobody can tell which of two equal files is the copy."""


def right_scalars(epoch: int) -> dict[str, int]:
    """What every rank's shard of a save holds."""
    step = 2 * epoch
    return {"epoch_num": epoch, "step_num": step, "global_step": step, "global_batch_size": 8, "loss_scale": 65536}


@lru_cache(maxsize=64)
def _template(stage: int, epoch: int, fmt: Fmt, changes: tuple[tuple[str, int], ...] = ()) -> bytes:
    """A shard of a pipeline stage, but for what its rank has for itself; the last stage's fill more than a page."""
    values = {**right_scalars(epoch), **dict(changes)}
    scalars = training_scalars(
        epoch=values["epoch_num"],
        true_step=values["step_num"],
        optimizer_step=values["global_step"],
        loss_scale=float(values["loss_scale"]),
        global_batch_size=values["global_batch_size"],
    )
    tensors = [Tensor(f"stage{stage}.dense.bias", "Float32", (2,), _OWN)]
    if stage == STAGES - 1:
        data = Random(epoch).randbytes(4 * _BIG)  # noqa: S311  the same weights in every run
        tensors.append(Tensor(f"stage{stage}.embedding", "Float32", (_BIG,), data))
    return shard_bytes([*tensors, *scalars], fmt)


@dataclass
class BigTree:
    """Two saves of many ranks, each of which holds a slice of its own."""

    root: Path
    ranks: int
    fmt: Fmt

    def build(self) -> None:
        """Write all of it."""
        for rank in range(self.ranks):
            (self.root / f"rank_{rank}").mkdir(parents=True)
            for epoch in EPOCHS:
                self.write(self.shard(rank, epoch), self.content(rank, epoch))
            self.write(f"rank_{rank}/meta.json", self.meta(rank, EPOCHS[1]))

    def write(self, path: str, data: bytes) -> None:
        # A Path a file takes twice the time.
        fd = os.open(f"{self.root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def shard(self, rank: int, epoch: int) -> str:
        return f"rank_{rank}/{self.name(rank, epoch)}"

    def name(self, rank: int, epoch: int) -> str:
        return f"{PREFIX}_rank_{rank}-{epoch}_2.{self.fmt}"

    def content(self, rank: int, epoch: int, **changes: int) -> bytes:
        template = _template(rank % STAGES, epoch, self.fmt, tuple(changes.items()))
        return template.replace(_OWN, struct.pack("<2f", rank + 0.5, rank + epoch / 64))

    def meta(self, rank: int, epoch: int, **changes: object) -> bytes:
        record = {"last_epoch": epoch, "last_step": 2, "last_ckpt_file": self.name(rank, epoch), **changes}
        return json.dumps(record).encode()

    def full(self, path: str) -> Path:
        return self.root / path


@dataclass(frozen=True)
class Spot:
    """Where a fault goes."""

    tree: BigTree
    rank: int
    epoch: int
    chance: Random

    @property
    def path(self) -> str:
        return self.tree.shard(self.rank, self.epoch)

    @property
    def data(self) -> bytes:
        return self.tree.content(self.rank, self.epoch)

    @property
    def meta(self) -> str:
        return f"rank_{self.rank}/meta.json"

    def put(self, data: bytes) -> None:
        """Write other bytes into the shard."""
        self.tree.write(self.path, data)

    def vacate(self) -> Path:
        """Take the shard away, and return its place."""
        place = self.tree.full(self.path)
        place.unlink()
        return place

    def found(self, *codes: str, also: Sequence[str] = ()) -> Planted:
        """Say what must be said of the shard."""
        return Planted(paths=(self.path,), codes=frozenset(codes), also=frozenset(also))
