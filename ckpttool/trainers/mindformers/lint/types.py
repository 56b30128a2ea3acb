"""Rules about what a setting may hold, and what YAML or MindFormers makes of a word.

Every command that takes a config asks those of `TYPES`; those of `SPELLING` are asked before a start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.settings import dotted
from ckpttool.trainers.mindformers.train_config import LEGACY_SWITCHES, TOP_ONLY, ConfigView

WHOLE_DATA_SET = -1  # as a sink size
_SHOWN = 40  # characters of a wrong value that a message repeats

# Settings that `ckpttool launch` writes itself: what is wrong with them in the base config has no effect afterwards.
_REWRITTEN = frozenset({
    "load_checkpoint", "resume_training", "load_ckpt_format", "data_skip_steps", "ignore_data_skip",
    "checkpoint.no_load_optim", *LEGACY_SWITCHES,
})  # fmt: skip

_BOOLS = (
    "use_parallel", "auto_trans_ckpt", "ignore_data_skip", "use_checkpoint_health_monitor", *LEGACY_SWITCHES,
    "remove_redundancy", "resume_by_last_timestamp_ckpt", "only_save_strategy", "use_skip_data_by_global_norm",
    "runner_config.sink_mode", "parallel.full_batch", "checkpoint.no_load_optim", "checkpoint.no_save_optim",
    "monitor_config.monitor_on", "monitor_config.check_for_global_norm", "check_for_nan_in_loss_and_grad",
    "runner_wrapper.use_clip_grad", "runner_wrapper.local_norm",
)  # fmt: skip

_POSITIVE = (
    "micro_batch_interleave_num", "runner_config.batch_size", "runner_config.epochs",
    "runner_config.gradient_accumulation_steps", "parallel_config.data_parallel", "parallel_config.model_parallel",
    "parallel_config.pipeline_stage", "parallel_config.context_parallel", "parallel_config.micro_batch_num",
)  # fmt: skip

_OF_SAVES = ("save_checkpoint_steps", "keep_checkpoint_max")
"""Of each callback that saves: with 0 the start fails, or nothing is saved."""

_FLOATS = frozenset({
    "learning_rate", "lr_end", "lr", "min_lr", "max_lr", "weight_decay", "eps", "epsilon", "betas", "beta1", "beta2",
    "momentum", "threshold", "loss_scale_value", "initializer_range", "theta", "routed_scaling_factor", "mem_coeff",
})  # fmt: skip
_FLOAT_ENDINGS = (
    "_eps", "_epsilon", "_threshold", "_ratio", "_factor", "_rate", "_decay", "_prob", "_dropout", "_coeff", "_lr",
    "_theta", "_scale",
)  # fmt: skip

# What float() takes and YAML 1.1 does not: an exponent without a point before it or a sign in it.
_NUMBER_AS_TEXT = re.compile(r"[-+]?(\d[\d_]*(?:\.\d*)?|\.\d+)[eE][-+]?\d+")

_COUNT = re.compile(r"[1-9][0-9]{0,8}")
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


def _number_as_text(view: ConfigView) -> Iterator[Problem]:
    for entry in view.entries:
        if entry.spelt is not None and isinstance(entry.value, str) and _NUMBER_AS_TEXT.fullmatch(entry.spelt):
            key = next((part for part in reversed(entry.key) if isinstance(part, str)), "")
            # Under another key it may be meant as text: the hash of a commit can look like this.
            is_number = key in _FLOATS or key.endswith(_FLOAT_ENDINGS)
            mantissa, _, exponent = entry.spelt.lower().partition("e")
            signed = exponent if exponent[0] in "+-" else f"+{exponent}"
            right = f"{mantissa}{'' if '.' in mantissa else '.0'}e{signed}"
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in entry.key).lstrip(".")
            yield Problem(
                severity=Severity.SUSPECT if is_number else Severity.NOTE,
                key=dotted(entry.key),
                message=f"`{place}` is {entry.spelt}, which YAML reads as text, not as a number: "
                "a number with an exponent needs a point and a sign",
                remedy=f"write {right}, or put it in quotes where text is meant",
                expected="a number",
                actual=f"the text {entry.spelt!r}",
                fix=right if is_number else None,
            )


def _wrong(view: ConfigView, key: str, expected: str, remedy: str = "", *, fix: str | None = None) -> Problem:
    value = view.raw(key)
    kind = "the text " if isinstance(value, str) else "the mapping " if isinstance(value, dict) else ""
    text = "nothing" if value is None else repr(value)
    actual = kind + (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
    return Problem(
        severity=Severity.NOTE if key in _REWRITTEN else Severity.SUSPECT,
        key=key,
        message=f"`{key}` must be {expected}, but the config has {actual}",
        remedy="`ckpttool launch` writes this key itself" if key in _REWRITTEN else remedy,
        expected=expected,
        actual=actual,
        fix=None if key in _REWRITTEN else fix,
    )


def _bools(view: ConfigView) -> Iterator[Problem]:
    for key in _BOOLS:
        value = view.get(key)
        if not isinstance(value, bool | None):
            # A word in quotes that is no other than this one; of any other text nobody knows what was meant.
            suggestion = value.capitalize() if isinstance(value, str) else None
            fix = suggestion if suggestion in {"True", "False"} else None
            remedy = "write True or False, without quotes; any text counts as True"
            yield _wrong(view, key, "True or False", remedy, fix=fix)


def _counts(view: ConfigView) -> Iterator[Problem]:
    saving = [f"{callback}.{name}" for callback in view.callbacks("CheckpointMonitor") for name in _OF_SAVES]
    for key in (*_POSITIVE, *(key for key in saving if view.get(key) is not None)):
        if view.setting(key) is not None and view.count(key, 0) < 1:
            value = view.get(key)
            fix = value if isinstance(value, str) and _COUNT.fullmatch(value) else None
            remedy = "write the number without quotes, point or sign"
            yield _wrong(view, key, "a whole number of at least 1", remedy, fix=fix)
    key = "runner_config.sink_size"
    if view.setting(key) is not None and view.count(key, 0) < 1 and view.count(key, 0) != WHOLE_DATA_SET:
        yield _wrong(view, key, "a whole number of at least 1, or -1", "write how many batches a data sink has")


def _words(view: ConfigView) -> Iterator[Problem]:
    if view.get("load_ckpt_format") not in {None, "ckpt", "safetensors"}:
        yield _wrong(view, "load_ckpt_format", "ckpt or safetensors")
    resume = view.get("resume_training")
    quoted = isinstance(resume, str) and resume.strip().lower() in {"true", "false"}
    if quoted or not isinstance(resume, str | bool | None):
        yield _wrong(view, "resume_training", "True, False or the name of a checkpoint file")
    if view.get("data_skip_steps") is not None and view.count("data_skip_steps", -1) < 0:
        yield _wrong(view, "data_skip_steps", "a whole number of at least 0")


TYPES = tuple(
    Rule(code=Code.CONFIG_WRONG_TYPE, check=check, needs_all=False)
    for check in (_number_as_text, _bools, _counts, _words)
)


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
    for section, known_keys in KNOWN_KEYS.items():
        if section == "moe_config" and view.get("use_legacy") is False:
            continue  # not looked at then
        names = known_keys.split()
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
