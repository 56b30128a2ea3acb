"""Rules about what YAML or MindFormers makes of a word: numbers that are others, None that is text, unknown keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from ckpttool.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.domain.finding import Code
from ckpttool.domain.settings import dotted
from ckpttool.trainers.mindformers.train_config import TOP_ONLY, ConfigView

_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")

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
"""Keys that the templates of MindFormers 1.6.0 to 2.1.0 have, all versions together, by strict section."""


def _odd_numbers(view: ConfigView) -> Iterator[Problem]:
    for entry in view.entries:
        if entry.spelt is None or isinstance(entry.value, str):
            continue
        octal = _OCTAL.fullmatch(entry.spelt)
        if octal or _BASE_60.fullmatch(entry.spelt):
            yield suspect(
                dotted(entry.key),
                f"`{dotted(entry.key)}` is {entry.spelt}, which YAML reads as {entry.value}: "
                + ("a number that begins with 0 is octal" if octal else "digits with colons are counted in sixties"),
                f"write {entry.spelt.lstrip('+-0_') or 0} where that is meant, or put it in quotes where text is"
                if octal
                else "put it in quotes where text is meant",
            )


def _none_as_text(view: ConfigView) -> Iterator[Problem]:
    for entry in view.entries:
        if entry.spelt == "None" and entry.value == "None":
            yield note(
                dotted(entry.key),
                f"`{dotted(entry.key)}` is None, which YAML reads as a text of four letters, not as nothing",
                "write null, or leave the value out",
            )


def _unknown_keys(view: ConfigView) -> Iterator[Problem]:
    for section, known in KNOWN_KEYS.items():
        if section == "moe_config" and view.get("use_legacy") is False:
            continue  # not looked at then
        names = known.split()
        for entry in view.inside(section):
            name = str(entry.key[-1])
            if name in names or name in TOP_ONLY:  # where one of the top stands in a section, another rule says so
                continue
            close = get_close_matches(name, names, n=1)
            yield suspect(
                f"{section}.{name}",
                f"`{name}` is no key of `{section}:` in MindFormers 1.6 to 2.1, which stop with a KeyError",
                f"did you mean `{close[0]}`?" if close else "remove it, or move it to where it belongs",
            )


SPELLING = (
    Rule(code=Code.YAML_ODD_NUMBER, check=_odd_numbers, needs_all=False),
    Rule(code=Code.YAML_NONE_IS_TEXT, check=_none_as_text, needs_all=False),
    Rule(code=Code.UNKNOWN_KEY, check=_unknown_keys, needs_all=False),
)
