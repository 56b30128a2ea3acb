"""The `args` in a save: the arguments of the run that wrote the save, including its counters."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.formats.torch.plain import text_at, value_at
from ckpttool.trainers.common.saved_values import count_at
from ckpttool.trainers.megatron import ModelPart

_FITS_ANY = frozenset({"fully_reshardable", "fully_sharded_model_space"})
"""Formats of the distributed optimizer's state that can be loaded at any tensor and pipeline size."""


_MOST_PARTS = 1 << 17
"""Upper limit for the parts of a model, so that a record cannot require a search for any number of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRecord:
    """The known facts about a save."""

    step: Step | None
    """The record's `iteration`."""
    samples: int | None
    """The record's `consumed_train_samples`."""
    global_batch_size: int | None
    world_size: int | None
    data: int | None
    """Number of data-parallel ranks."""
    tensor: int
    pipeline: int
    expert: int
    expert_tensor: int
    """Sizes of tensor, pipeline and expert parallelism, and of tensor parallelism within experts."""
    distributed_optimizer: bool
    """Whether the optimizer's state is in its own files or slices."""
    saves_optimizer: bool
    sharding: str | None
    """The format of the distributed optimizer's state: `dp_reshardable` requires the same tensor and pipeline sizes."""

    @property
    def scalars(self) -> Scalars:
        """The recorded progress, and the sizes of the run."""
        sizes = {
            "data": self.data,
            "fully_reshardable": None if self.sharding is None else int(self.sharding in _FITS_ANY),
            "pipeline": self.pipeline,
            "tensor": self.tensor,
            "world_size": self.world_size,
        }
        return Scalars(
            step=self.step,
            samples=self.samples,
            global_batch_size=self.global_batch_size,
            rest=tuple((name, size) for name, size in sizes.items() if size is not None),
        )

    @property
    def has_optimizer_files(self) -> bool:
        """Whether each part of the model has a file for the optimizer's state."""
        return self.distributed_optimizer and self.saves_optimizer

    def parts(self) -> dict[ModelPart, Rank]:
        """Return the parts of the model that have a folder in the legacy layout, each with the rank that wrote it.

        Source: in `save_checkpoint`, the first of the ranks with the same experts writes; the order of
        ranks is `tp-cp-ep-dp-pp`, and `etp-ep-edp-pp` for experts (`megatron/core/parallel_state.py`).
        """
        stage = (self.world_size or 0) // self.pipeline
        return {
            ModelPart(
                rank % self.tensor,
                pipeline if self.pipeline > 1 else None,
                rank // self.expert_tensor % self.expert if self.expert > 1 else None,
            ): Rank(pipeline * stage + rank)
            for pipeline in range(self.pipeline)
            for rank in range(self.expert_tensor * self.expert)
        }


def save_record(values: object) -> SaveRecord | None:
    """Read the record from a save's pickle; None if the pickle does not show how the ranks shared the model."""
    tensor = count_at(values, "args", "tensor_model_parallel_size")
    pipeline = count_at(values, "args", "pipeline_model_parallel_size")
    expert = count_at(values, "args", "expert_model_parallel_size") or 1
    within = count_at(values, "args", "expert_tensor_parallel_size") or tensor
    if not tensor or not pipeline or not within or max(tensor, within * expert) * pipeline > _MOST_PARTS:
        return None
    iteration = count_at(values, "iteration")
    return SaveRecord(
        step=None if iteration is None else Step(iteration),
        samples=count_at(values, "args", "consumed_train_samples"),
        global_batch_size=count_at(values, "args", "global_batch_size"),
        world_size=count_at(values, "args", "world_size"),
        data=count_at(values, "args", "data_parallel_size"),
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
        expert_tensor=within,
        distributed_optimizer=value_at(values, "args", "use_distributed_optimizer") is True,
        saves_optimizer=value_at(values, "args", "no_save_optim") is not True,
        sharding=text_at(values, "content_metadata", "distrib_optim_sharding_type")
        or text_at(values, "optimizer", "param_state_sharding_type"),
    )
