"""The rank layout as ckpttool writes it, with the names, scalars and records of MindFormers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.saving import SavedScalar, SaveLabel, SaveProgress
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Rank, Step
from ckpttool.trainers.mindformers.health_file import MindFormersHealthFile, updated_health_json
from ckpttool.trainers.mindformers.layouts.names import (
    RANK_LAYOUT,
    FileKind,
    checkpoint_name,
    file_name,
    parse_shape,
    shape_of,
)
from ckpttool.trainers.mindformers.layouts.pointers import meta_bytes
from ckpttool.trainers.mindformers.layouts.rank import seal_place
from ckpttool.trainers.mindformers.scalars import EpochStep

_SUFFIX = "safetensors"
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")
_SPELLED = {
    "epoch_num": (DType.I64, ()),
    "step_num": (DType.I64, ()),
    "global_step": (DType.I32, (1,)),
    "loss_scale": (DType.F32, ()),
    "global_batch_size": (DType.I64, ()),
}
"""MindSpore's encoding of each scalar in a safetensors file."""


class RankSaves:
    """Saves in the form `rank_N/{prefix}_rank_N[_k]-{epoch}_{step}.safetensors`."""

    name = RANK_LAYOUT
    folder = "checkpoint"
    health_file = MindFormersHealthFile.name

    def objection(self, prefix: str) -> str | None:
        """Return the reason for rejecting a prefix; None if it is valid.

        Prefixes that MindFormers would find ambiguous are also rejected.
        """
        if _PREFIX.fullmatch(prefix) is None:
            return "expected up to 64 letters, digits, _ and ."
        return "_rank_ precedes the rank" if "_rank_" in prefix else None

    def rank_folder(self, rank: Rank) -> str:
        """Return the folder of a rank."""
        return f"rank_{rank}"

    def next_run(self, names: Iterable[str], prefix: str, rank: Rank) -> int:
        """Return the number after this prefix's highest suffix, as each start of MindFormers does."""
        parsed = [parse_shape(shape_of(name, f"_rank_{rank}")) for name in names]
        saved = (FileKind.CHECKPOINT, FileKind.IN_PROGRESS)
        return max((1 + shape.run for shape in parsed if shape.kind in saved and shape.prefix == prefix), default=0)

    def leftovers(self, names: Iterable[str], prefix: str, rank: Rank) -> list[str]:
        """Return the temporary files with this prefix."""
        shapes = ((name, parse_shape(shape_of(name, f"_rank_{rank}"))) for name in names)
        return [name for name, shape in shapes if shape.kind is FileKind.IN_PROGRESS and shape.prefix == prefix]

    def label(self, prefix: str, run: int, progress: SaveProgress) -> SaveLabel:
        """Return the label with the epoch and the step in that epoch."""
        return SaveLabel(prefix=prefix, run=run, epoch=progress.epoch, step=progress.step_in_epoch)

    def parsed(self, file: str) -> SaveLabel | None:
        """Parse the name of rank 0's file; return None if it is not the name of such a save."""
        shape = parse_shape(shape_of(file, "_rank_0"))
        if shape.kind is not FileKind.CHECKPOINT or not file.endswith(f".{_SUFFIX}"):
            return None
        return SaveLabel(prefix=shape.prefix, run=shape.run, epoch=shape.position.epoch, step=shape.position.step)

    def checkpoint(self, label: SaveLabel) -> str:
        """Return the checkpoint's name: `20_2`, or `_1-25_2` for a later start."""
        return checkpoint_name(label.run, _position(label))

    def manifest(self, label: SaveLabel) -> str:
        """Return the place of the save's seal."""
        return seal_place(label.prefix, self.checkpoint(label), FormatName.SAFETENSORS).path

    def shard(self, label: SaveLabel, rank: Rank) -> str:
        """Return the path of a rank's file."""
        return f"{self.rank_folder(rank)}/{self._file(label, rank)}"

    def temporary(self, label: SaveLabel, rank: Rank) -> str:
        """Return MindSpore's temporary name, which shows readers of the tree that a save is in progress."""
        return f"{self._file(label, rank).removesuffix(f'.{_SUFFIX}')}.tmp"

    def _file(self, label: SaveLabel, rank: Rank) -> str:
        return file_name(label.prefix, rank, label.run, _position(label), _SUFFIX)

    def scalars(self, progress: SaveProgress) -> tuple[SavedScalar, ...]:
        """Return the scalars that MindFormers appends to a rank's file."""
        values: dict[str, int | float | None] = {
            "epoch_num": progress.epoch,
            "step_num": progress.step,
            "global_step": progress.applied,
            "loss_scale": progress.loss_scale,
            "global_batch_size": progress.global_batch_size,
        }
        return tuple(
            SavedScalar(name=name, dtype=_SPELLED[name][0], shape=_SPELLED[name][1], value=value)
            for name, value in values.items()
            if value is not None
        )

    def progress(self, scalars: dict[str, int | float]) -> SaveProgress | None:
        """Return the progress in the scalars.

        Only the file name contains the step in the epoch.
        """
        epoch, step, applied = (scalars.get(name) for name in ("epoch_num", "step_num", "global_step"))
        if epoch is None or step is None or applied is None:
            return None
        batch = scalars.get("global_batch_size")
        return SaveProgress(
            step=Step(int(step)),
            applied=int(applied),
            epoch=int(epoch),
            step_in_epoch=0,
            loss_scale=scalars.get("loss_scale", 1.0),
            global_batch_size=None if batch is None else int(batch),
        )

    def records(self, label: SaveLabel, rank: Rank) -> tuple[tuple[str, bytes], ...]:
        """Return the path and content of the rank's meta.json."""
        content = meta_bytes(_position(label), self._file(label, rank))
        return ((f"{self.rank_folder(rank)}/meta.json", content),)

    def with_health(self, old: bytes | None, label: SaveLabel, health: Health) -> bytes:
        """Return the health file with an entry for rank 0's file name."""
        return updated_health_json(old, [(self._file(label, Rank(0)), health)])


def _position(label: SaveLabel) -> EpochStep:
    return EpochStep(epoch=label.epoch, step=label.step)
