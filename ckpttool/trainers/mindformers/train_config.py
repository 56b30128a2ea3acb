"""Settings of a MindFormers training config for resuming, parallelism and data."""

from __future__ import annotations

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.settings import RunConfig, dotted
from ckpttool.core.errors import UsageError

TRAINER = "mindformers"
"""MindFormers' name in JSON, and in a config or a plan."""

AUTO_PARALLEL = (1, 2, "SEMI_AUTO_PARALLEL", "AUTO_PARALLEL")  # not a set: a config may have a list here
"""The modes in which the sizes in `parallel_config` count; in any other mode, MindFormers resets these sizes to 1."""


LEGACY_SWITCHES = ("use_legacy_format", "ckpt_use_legacy_format")
"""The keys of the switch between the layouts: that of most versions, and that of MindFormers 1.7."""

TOP_ONLY = (
    "load_checkpoint", "resume_training", "load_ckpt_format", "auto_trans_ckpt", "data_skip_steps", "ignore_data_skip",
    "use_checkpoint_health_monitor", "resume_by_last_timestamp_ckpt", "use_parallel", *LEGACY_SWITCHES,
)  # fmt: skip
"""Settings that are read only at the top level, although some documentation pages show otherwise."""

KEPT_CHECKPOINTS = 5
"""MindFormers' default for `keep_checkpoint_max` and `save_max`."""

WHOLE_DATA_SET = -1
"""The sink size that means the complete data set."""

_MOE = """
aux_loss_factor aux_loss_factors aux_loss_types balance_via_topk_bias callback_moe_droprate capacity_factor
cold_token_percent comp_comm_parallel comp_comm_parallel_degree cur_layer dispatch_global_max_bs enable_cold_hot_expert
enable_deredundency enable_gmm_safe_tokens enable_sdrop ep_extend_tp expert_group_size expert_model_parallel expert_num
first_k_dense_replace group_wise_a2a hot_expert_num max_router_load moe_intermediate_size moe_module_name
moe_shared_expert_overlap n_group norm_topk_prob npu_nums_per_device num_experts_chosen routed_scaling_factor
router_dense_type routing_policy save_token_distribution shared_expert_num topk_bias_update_rate topk_group topk_method
update_step use_allgather_dispatcher use_fused_ops_permute use_fused_ops_topkrouter use_gating_sigmoid use_gmm
use_shared_expert_gating z_loss_factor
"""

KNOWN_KEYS = {
    "runner_config": "batch_size epochs gradient_accumulation_steps num_classes sink_mode sink_size stop_step",
    "parallel_config": "context_parallel context_parallel_algo data_parallel expert_parallel "
    "gradient_aggregation_group mem_coeff micro_batch_num model_parallel optimizer_shard pipeline_stage seq_split_num "
    "ulysses_degree_in_cp use_seq_parallel vocab_emb_dp",
    "recompute_config": "mp_comm_recompute parallel_optimizer_comm_recompute recompute recompute_slice_activation "
    "select_comm_recompute select_comm_recompute_exclude select_recompute select_recompute_exclude",
    "swap_config": "default_prefetch layer_swap op_swap swap",
    "moe_config": _MOE,
    "monitor_config": "check_for_global_norm device_local_loss_format device_local_norm_format dump_path "
    "global_norm_spike_count_threshold global_norm_spike_threshold health_checkpoint invert local_loss_format "
    "local_norm_format max_attention_logit_format monitor_on optimizer_state_format print_struct stable_rank_config "
    "step_interval target throughput_baseline weight_state_format",
}
"""All keys in the templates of MindFormers 1.6.0 to 2.1.0, by strict section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingData:
    """A data loader (HFDataLoader, formerly CommonDataLoader) that stores its position in files."""

    state_dir: str | None
    """`dataset_state_dir` as written in the config, relative to the folder in which the training run is started."""
    broadcast: bool
    """Whether some ranks get their data from other ranks, and record no position."""
    level: int
    """Level of broadcasting: 1 for inner pipeline stages, 2 for all ranks of a slice except one, 3 for both."""
    stages: int | None
    """Number of pipeline stages."""
    slices: int | None
    """Number of parts into which a batch is sliced; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig):
    """The settings of a YAML config that affect a resume; None means not set, and without a known default.

    The world size is data_parallel * model_parallel * pipeline_stage * context_parallel. The global batch size is
    computed as in MindFormers 1.6 and later. The prefix is that of the CheckpointMonitor callback. With one pipeline
    stage, MindFormers' health monitor measures nothing, and records "healthy".
    """

    trainer: str = TRAINER
    sink_mode: bool
    epochs: int | None
    load_ckpt_format: str
    """Format of the files to load: `ckpt` or `safetensors`; MindFormers' default is `ckpt`."""
    auto_trans_ckpt: bool
    """Whether MindFormers re-slices a checkpoint from a different world size while loading."""
    use_legacy_format: bool
    """False means the `iteration_*` layout. A top-level `checkpoint:` section also forces this layout."""
    has_checkpoint_section: bool
    use_checkpoint_health_monitor: bool
    global_batch_size_1_3: int | None = None
    """The global batch size that MindFormers 1.3.2 and older compute from the same settings.

    With `full_batch: False`, they count every device as data-parallel. None if they compute the same size, or if the
    size is unknown.
    """
    health_check_picks: bool = False
    """Whether MindFormers loads the newest healthy iteration of the output folder instead of the requested one.

    MindFormers 1.9 and later do so in the newer layout.
    """
    no_load_optim: bool = False
    """Whether the `checkpoint:` section loads only weights, which starts the training at step 0."""
    no_save_optim: bool = False
    """Whether checkpoints in the newer layout are saved without optimizer state."""
    resume_training: str | bool | None = None
    """The value in the config before a launch rewrites the config; None if the value is not set."""
    reslices_by_time: bool = False
    """Whether re-slicing takes the newest `.ckpt` in a rank's folder, instead of the last one by name."""
    sinks_all: bool = False
    """Whether a data sink is the complete data set (`sink_size: -1`)."""
    dataset_samples: int | None = None
    """Samples in the training run's data set, if the config contains their number (Megatron's `sizes`)."""
    legacy_switch: str = LEGACY_SWITCHES[0]
    """The form of the layout switch in this config; the usual form if the config has neither."""
    remove_redundancy: bool | None = None
    """Whether shards are loaded as if each tensor were in only one shard; None if a different file may set this."""
    use_parallel: bool | None = None
    """Whether parallelism is on; None if a different file, which was not read, may set the value."""
    data_parallel: bool = False
    """Whether the run is outside (semi-)automatic parallelism.

    If so, each device reads its own data, and loads the file of its own rank. World size and batch size then depend on
    the number of devices that are started, which no config contains.
    """
    device_batch_size: int | None = None
    """Samples per batch on one device; only with `data_parallel`."""
    shards_optimizer: bool = False
    """Whether devices with the same weights divide the optimizer's state."""
    streaming: StreamingData | None = None
    """Settings for streaming data; None if the training data are not streamed."""

    def started_on(self, devices: int | None) -> TrainConfig:
        """Return the config for this number of devices, which determines the sizes in data-parallel mode."""
        if not self.data_parallel or devices is None:
            return self
        batch = None if self.device_batch_size is None else self.device_batch_size * devices
        return replace(self, world_size=devices, global_batch_size=batch)


def with_trainer_defaults(config: RunConfig) -> TrainConfig:
    """Return a config as a MindFormers config, with all its settings.

    Raises:
        UsageError: The config belongs to another trainer.
    """
    if isinstance(config, TrainConfig):
        return config
    raise UsageError(f"{config.path} is a config for {config.trainer}, but the checkpoints belong to {TRAINER}")


class ConfigView(View):
    """A config whose values are looked up by dotted keys: `runner_config.sink_size`, `callbacks.1.prefix`."""

    def callbacks(self, kind: str) -> list[str]:
        """Return the keys of the callbacks with a type, in order: `callbacks.1`."""
        return [
            dotted(entry.key) for entry in self.inside("callbacks") if self.get(f"{dotted(entry.key)}.type") == kind
        ]

    @property
    def stages(self) -> int:
        """Number of pipeline stages; always 1 without automatic parallelism."""
        return max(self.count("parallel_config.pipeline_stage"), 1) if self.is_auto_parallel else 1

    @property
    def is_auto_parallel(self) -> bool:
        """Whether the sizes in `parallel_config` apply."""
        mode = self.get("parallel.parallel_mode")
        return self.is_on("use_parallel") and (1 if mode is None else mode) in AUTO_PARALLEL

    @property
    def is_newer_layout(self) -> bool:
        """Whether checkpoints are saved as `iteration_*`."""
        return self.is_section("checkpoint") or any(self.get(switch) is False for switch in LEGACY_SWITCHES)
