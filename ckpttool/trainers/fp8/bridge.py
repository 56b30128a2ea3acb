"""Experiments in Megatron-Bridge, by overrides of its config and the debug features that it starts by itself.

Source:
    Megatron-Bridge v0.5.1 to 2026-08 (`config.py`, `mixed_precision.py`, `tensor_inspect.py` of its `training`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ckpttool.domain.fp8 import Recipe
from ckpttool.domain.fp8_plan import AsPlanned, Change, Experiment, Trial
from ckpttool.domain.fp8_settings import RunArithmetic
from ckpttool.trainers.fp8 import transformer_engine as te
from ckpttool.trainers.fp8.frameworks import KEEP_OPTIMIZER, SAME_BATCH, Setting, in_bf16, no_delayed

_NO_GATHER_OVERLAP = tuple(
    (f"{config}.overlap_param_gather", "False") for config in ("comm_overlap", "ddp", "optimizer")
)
"""In all three: a config of overlaps sets the others, and of the two Bridge switches on what one alone has off."""

_NO_MXFP8_BUFFER = ("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", "False")
_NO_PARAMETERS = (("mixed_precision.fp8_param_gather", "False"), _NO_MXFP8_BUFFER)
_EXTRAS = {
    "sequence parallel": (("model.sequence_parallel", "False"),),
    "overlap of tensor-parallel communication": (("comm_overlap.tp_comm_overlap", "False"),),
    "overlap of gradient reduction": (
        ("comm_overlap.overlap_grad_reduce", "False"),
        ("ddp.overlap_grad_reduce", "False"),
        *_NO_GATHER_OVERLAP,  # which is refused without it
    ),
    "overlap of parameter gathering": _NO_GATHER_OVERLAP,
    "FP8 attention": (("mixed_precision.fp8_dot_product_attention", "False"),),
    "FP8 multi-head attention": (("mixed_precision.fp8_multi_head_attention", "False"),),
    "FP8 parameters": _NO_PARAMETERS,
    "CUDA graphs": (("model.cuda_graph_impl", "none"),),
    "recompute": (("model.recompute_granularity", "null"),),
}
_NO_OVERLAPS = "where the config has no comm_overlap, leave those lines out"


class Bridge:
    """Overrides of a recipe's config."""

    title = "Megatron-Bridge"
    recipes = (Recipe.TENSORWISE, Recipe.BLOCKWISE, Recipe.MXFP8)
    first_layer = 1

    def extras(self, arguments: Mapping[str, str] | None) -> tuple[str, ...]:
        """Return all: what a recipe of Bridge switches on, its log does not print as arguments."""
        del arguments
        return tuple(_EXTRAS)

    def change(self, trial: Trial, setting: Setting) -> Change | str:
        """Return the overrides."""
        settings = [*_start(setting)]
        notes = [KEEP_OPTIMIZER] if in_bf16(trial) else []
        files: tuple[tuple[str, str], ...] = ()
        if trial.is_regrouped:
            size = setting.argument("micro_batch_size")
            settings.append(("train.micro_batch_size", regrouped(size) or "<half of what it was>"))
            notes.append(SAME_BATCH)
        if in_bf16(trial):
            settings.append(("mixed_precision", "bf16_mixed"))
            return Change(set=tuple(settings), notes=tuple(notes))
        if trial.drops_history:
            return no_delayed(trial, setting, "the candidate") or (
                "no setting leaves the scale history out (checkpoint.dist_ckpt_strictness passes over what a "
                "checkpoint lacks, never over what it holds): a copy of the checkpoint without `_extra_state` would do"
            )
        if trial.recipe is not None:
            refused = te.no_recipe(trial.recipe, setting.engine_version)
            if refused is not None:
                return refused
            settings += [("mixed_precision.fp8_recipe", trial.recipe.value), *_parameters(trial.recipe)]
            notes += te.for_devices(trial.recipe)
        if trial.without or trial.id.startswith("E1"):
            off = dict.fromkeys(each for name in trial.without or tuple(_EXTRAS) for each in _EXTRAS[name])
            settings += off
            notes += [_NO_OVERLAPS] if any(key.startswith("comm_overlap") for key, _ in off) else []
        if te.needs_debug(trial):
            refused = te.no_debug(trial, setting)
            if refused is not None:
                return refused
            files = ((te.CONFIG, te.debug_config(trial, setting)),)
            settings += [
                ("tensor_inspect.enabled", "True"),
                ("tensor_inspect.features", f"{setting.folder}/{te.CONFIG}"),
                ("tensor_inspect.log_dir", f"{setting.folder}/{te.LOGS}"),
            ]
        return Change(set=tuple(settings), files=files, notes=tuple(notes))

    def told(self, experiment: Experiment, seen: RunArithmetic) -> tuple[AsPlanned, str | None]:
        """The debug features' log alone tells, and that is read for all frameworks."""
        del experiment, seen
        return AsPlanned.UNKNOWN, None


def _parameters(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    """Keep parameters as the recipe can: Bridge stops where those of MXFP8 have no buffer, and others none of it."""
    return _NO_PARAMETERS if recipe is Recipe.MXFP8 else (_NO_MXFP8_BUFFER,)


def _start(setting: Setting) -> tuple[tuple[str, str], ...]:
    """Start at the checkpoint, save elsewhere, and stop without a change of the learning rate."""
    load = (
        ()
        if setting.load is None
        else (("checkpoint.load", setting.load), ("checkpoint.ckpt_step", str(setting.first_step)))
    )
    return (
        *load,
        ("checkpoint.save", f"{setting.folder}/checkpoints"),
        ("train.exit_interval", str(setting.last_step)),
    )


def regrouped(size: str | None) -> str | None:
    """Return another micro-batch size that divides what this one does: half of it, or two instead of one."""
    if size is None or not size.isdecimal() or int(size) < 1:
        return None
    return "2" if int(size) == 1 else str(int(size) // 2) if int(size) % 2 == 0 else "1"


FRAMEWORK = Bridge()
