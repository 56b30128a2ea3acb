"""The settings of the PyNative trainer, with their types.

Source: the dataclasses of `mindformers/pynative/config/config.py` in the wheels 1.9.0 and 2.1.0.
"""

from __future__ import annotations

_TABLE = {
    "checkpoint": "enable_save:bool save_path:str save_max:int save_interleaved_steps:int no_save_optim:bool "
    "async_save:bool prefix:str? remove_redundancy:bool load_path:str save_trainable_only:bool base_load_path:str "
    "load_balanced:bool no_load_optim:bool load_worker_number:int save_global_layout_cache:bool "
    "reshard_worker_num:int",
    "training": "steps:int local_batch_size:int global_batch_size:int max_norm:float use_skip_step_on_nan:bool "
    "max_consecutive_skipped_steps:int seed:int deterministic:bool rampup_batch_size:any",
    "parallelism": "data_parallel_shard:int data_parallel_shard_strategy:str reshard_after_forward_policy:str "
    "cpu_offload:bool disable_gradient_division:bool dense_fsdp_shard_size:int? tensor_parallel:int "
    "context_parallel:int context_parallel_method:str context_parallel_async:bool ulysses_degree_in_cp:int? "
    "context_parallel_mask_type:str pipeline_parallel:int pipeline_parallel_layers_per_stage:any "
    "pipeline_parallel_schedule:str pipeline_parallel_microbatch_size:int pipeline_parallel_interleave_num:int "
    "pipeline_parallel_overlap_p2p:bool pipeline_parallel_overlap_b_f:bool "
    "pipeline_parallel_enable_dxdw_split:bool pipeline_parallel_p2p_transport:str sequence_parallel:bool "
    "enable_mc2:bool enable_loss_parallel:bool expert_parallel:int npu_nums_per_device:int "
    "moe_token_dispatcher_type:str expert_parallel_async_d2h:bool expert_parallel_use_safe_tokens:bool",
    "train_dataset": "dataloader:any drop_remainder:bool num_parallel_workers:int prefetch_size:int numa_enable:bool "
    "use_distribute_dataset:bool balance_enabled:bool",
    "context": "mode:int max_device_memory:str device_target:str",
    "monitor": "health_checkpoint:any train_state:any tensorboard:any moe_monitor:any",
}
"""Sections in which any other key stops the start with a ValueError. A `?` means that the value may be empty."""

_OPEN = {
    "optimizer": "type:str eps:float weight_decay:float",
    "lr_scheduler": "type:str learning_rate:float",
    "train_dataset.dataloader": "type:str shuffle:bool python_multiprocessing:bool",
    "model": "model_type:str architectures:str",
}
"""Sections in which other keys are accepted, and may be arguments of the class."""

OF_OLDER = {
    "parallelism": frozenset({"hsdp_shard_size", "hsdp_optimizer_level", "hsdp_threshold"}),
    "monitor": frozenset(),
}
"""Keys of 1.9.0 that 2.0 and later reject."""

STATIC_KEYS = frozenset({
    "load_checkpoint", "resume_training", "runner_config", "data_skip_steps", "ignore_data_skip", "auto_trans_ckpt",
    "load_ckpt_format", "use_legacy_format", "use_parallel", "parallel_config", "use_checkpoint_health_monitor",
})  # fmt: skip
"""Top-level keys of the static trainer, which the PyNative trainer accepts and never reads."""


def _types(table: dict[str, str]) -> dict[str, dict[str, str]]:
    return {section: dict(key.split(":") for key in keys.split()) for section, keys in table.items()}


KEYS = _types(_TABLE)
"""The type of each key, by strict section."""
OPEN_KEYS = _types(_OPEN)
"""The same for sections that accept other keys."""
