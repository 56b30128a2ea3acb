"""The record of a save, in one of its model files: its progress, number of files, and settings.

Only the pickle inside the file is read; the pickle is interpreted without being executed.
"""

from __future__ import annotations

from typing import NamedTuple

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.torch.plain import value_at
from ckpttool.trainers.common.saved_values import count_at
from ckpttool.trainers.deepspeed_tags import StatesFile, model_file, optimizer_file

_OPTIMIZER_FROM = 1
_WEIGHTS_FROM = 3
"""Lowest ZeRO stages at which each data-parallel rank has its own files: for the optimizer, and for the weights."""

_MOST_RANKS = 1 << 17
"""Upper limit for the number of ranks, so that a record cannot require a search for any number of files."""


class Seen(NamedTuple):
    """Facts from the names of a tag's files, used if the record lacks them."""

    weights_by_replica: bool
    """Whether each data-parallel rank has a model file."""
    optimizer: bool
    """Whether any file contains a part of the optimizer's state."""
    is_bf16: bool
    """Whether the names of most of these files begin with `bf16_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRecord:
    """The known facts about a tag."""

    step: int | None
    """`global_steps`: global batches, including those whose update was skipped after an overflow."""
    updates: int | None
    """Updates of the optimizer, excluding those that were skipped."""
    samples: int | None
    """`global_samples`: the samples that the training run has consumed, whatever the batch sizes."""
    replicas: int | None
    """`dp_world_size`: number of data-parallel ranks."""
    slices: int | None
    """`mp_world_size`: number of parts of the model, over tensor and pipeline parallelism."""
    stages: int
    """Number of stages in the pipeline."""
    zero_stage: int | None
    """The ZeRO stage: 0 divides nothing, 1 the optimizer state, 2 also the gradients, 3 also the weights.

    None if the file contains only the config's path, and not its settings.
    """
    global_batch_size: int | None
    """Samples per update; None if the settings do not show it."""
    holds_optimizer: bool
    """Whether the file itself contains the optimizer's state."""

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the training run; None if the file shows no number, or an implausible one."""
        if not self.replicas or not self.slices:
            return None
        world = self.replicas * self.slices
        return world if world <= _MOST_RANKS else None

    @property
    def scalars(self) -> Scalars:
        """The recorded progress."""
        return Scalars(step=self.step, samples=self.samples, global_batch_size=self.global_batch_size)

    def is_beyond(self, file: StatesFile) -> bool:
        """Return whether a file belongs to a rank that did not take part in this save."""
        beyond_slices = file.slice is not None and self.slices is not None and file.slice >= self.slices
        return beyond_slices or bool(self.replicas and (file.replica or 0) >= self.replicas)

    def are_weights_shared_out(self, view: Seen) -> bool:
        """Return whether each data-parallel rank has a part of the weights."""
        return view.weights_by_replica if self.zero_stage is None else self.zero_stage >= _WEIGHTS_FROM

    def is_optimizer_shared_out(self, view: Seen) -> bool | None:
        """Return whether each data-parallel rank has a part of the optimizer state; None if unknown."""
        if self.zero_stage is None and not (self.holds_optimizer or view.optimizer or view.weights_by_replica):
            return None
        # Without ZeRO, the optimizers for bf16 also have such parts.
        by_zero = (self.zero_stage or 0) >= _OPTIMIZER_FROM or self.are_weights_shared_out(view)
        return by_zero or (view.optimizer and not self.holds_optimizer)

    def rank(self, file: StatesFile) -> Rank | None:
        """Return the rank of a file, or the first rank of a shared file; None if the name does not show the rank.

        Source: `PipelineParallelGrid`: ranks are arranged by stage, replica and slice, in this order.
        """
        if file.slice is None or not self.replicas or not self.slices:
            return None
        tensor = self.slices // self.stages
        stage, within = divmod(file.slice, tensor)
        return Rank((stage * self.replicas + (file.replica or 0)) * tensor + within)

    def has_optimizer(self, view: Seen) -> bool:
        """Return whether the save contains optimizer state.

        A training run without an optimizer saves none.
        """
        return self.holds_optimizer or bool(self.is_optimizer_shared_out(view))

    def files(self, view: Seen) -> list[str] | None:
        """Return the names of all files that the save must have; None if unknown."""
        shares_optimizer = self.is_optimizer_shared_out(view)
        if self.world_size is None or shares_optimizer is None:
            return None
        slices, replicas = range(self.slices or 0), range(self.replicas or 0)
        if self.are_weights_shared_out(view):
            names = [model_file(mp, dp) for mp in slices for dp in replicas]
        else:
            names = [model_file(mp) for mp in slices]
        if shares_optimizer:
            names += [optimizer_file(mp, dp, is_bf16=view.is_bf16) for mp in slices for dp in replicas]
        return names


def tag_record(values: object) -> TagRecord:
    """Read the record from a model file's pickle; values that are not plain numbers are ignored."""
    settings = value_at(values, "ds_config")
    replicas, slices = count_at(values, "dp_world_size"), count_at(values, "mp_world_size")
    stages = count_at(values, "checkpoint_parallel_dimensions", "pp_degree") or 1
    step, skipped = count_at(values, "global_steps"), count_at(values, "skipped_steps")
    return TagRecord(
        step=step,
        updates=None if step is None or skipped is None or skipped > step else step - skipped,
        samples=count_at(values, "global_samples"),
        replicas=replicas,
        slices=slices,
        stages=stages if slices and slices % stages == 0 else 1,
        zero_stage=_zero_stage(settings),
        global_batch_size=_batch_size(settings, replicas),
        holds_optimizer=value_at(values, "optimizer") is not None,
    )


def _zero_stage(settings: object) -> int | None:
    if not isinstance(settings, dict):
        return None
    zero = settings.get("zero_optimization", {})
    if isinstance(zero, bool):  # the form of the first versions
        return int(zero)
    return 0 if zero == {} else count_at(zero, "stage")


def _batch_size(settings: object, replicas: int | None) -> int | None:
    """Return the samples per update; None if the settings do not contain them.

    The settings are saved as the user wrote them.
    """
    batch_size = count_at(settings, "train_batch_size")
    if batch_size is not None:
        return batch_size
    micro = count_at(settings, "train_micro_batch_size_per_gpu")
    is_said = value_at(settings, "gradient_accumulation_steps") is not None
    accumulated = count_at(settings, "gradient_accumulation_steps") if is_said else 1
    return micro * accumulated * replicas if micro and accumulated and replicas else None
