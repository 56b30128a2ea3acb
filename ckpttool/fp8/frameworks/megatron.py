"""Experiments in Megatron-LM, set by flags, because Megatron-LM never starts Transformer Engine's debug features.

Source:
    Megatron-LM core_v0.12 to 2026-08 (`training/arguments.py`, `core/fp8_utils.py`,
    `core/extensions/TransformerEngineMixedPrecision.md`); Transformer Engine v2.15 (`NVTE_BACKWARD_OVERRIDE`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckpttool.fp8.frameworks import transformer_engine as te
from ckpttool.fp8.frameworks.frameworks import (
    KEEP_OPTIMIZER,
    SAME_BATCH,
    Framework,
    Setting,
    in_bf16,
    no_delayed,
    printed_otherwise,
    regrouped,
)
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Recipe
from ckpttool.fp8.model.plan import AsPlanned, Change, Experiment, Trial
from ckpttool.fp8.model.settings import RunArithmetic
from ckpttool.fp8.rules.experiments import numbers_in

_MXFP8_BUFFER = "--reuse-grad-buf-for-mxfp8-param-ag"
_FP8 = (
    "--fp8-format", "--fp8-recipe", "--fp8-margin", "--fp8-interval", "--fp8-amax-history-len",
    "--fp8-amax-compute-algo", "--no-fp8-wgrad", "--fp8-param-gather", "--first-last-layers-bf16",
    "--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16", "--te-precision-config-file",
    "--fp8-quantizer-factory", _MXFP8_BUFFER, "--moe-router-padding-for-fp8",
    "--moe-router-padding-for-quantization",
)  # fmt: skip
_DELAYED = ("--fp8-margin", "--fp8-interval", "--fp8-amax-history-len", "--fp8-amax-compute-algo")
_EXTRAS = {
    "--sequence-parallel": "sequence_parallel",
    "--tp-comm-overlap": "tp_comm_overlap",
    "--overlap-grad-reduce": "overlap_grad_reduce",
    "--overlap-param-gather": "overlap_param_gather",
    "--fp8-dot-product-attention": "fp8_dot_product_attention",
    "--fp8-multi-head-attention": "fp8_multi_head_attention",
    "--fp8-param-gather": "fp8_param_gather",
    "--enable-cuda-graph": "enable_cuda_graph",
    "--external-cuda-graph": "external_cuda_graph",
    "--cuda-graph-impl": "cuda_graph_impl",
    "--recompute-granularity": "recompute_granularity",
}
"""Maps each flag to its printed name."""

_GO_WITH = {
    "--sequence-parallel": ("--tp-comm-overlap",),
    "--overlap-grad-reduce": ("--overlap-param-gather", "--overlap-param-gather-with-optimizer-step"),
    "--overlap-param-gather": ("--overlap-param-gather-with-optimizer-step",),
    "--fp8-param-gather": (_MXFP8_BUFFER,),
    "--cuda-graph-impl": ("--enable-cuda-graph", "--external-cuda-graph", "--cuda-graph-scope"),
    "--recompute-granularity": (
        "--recompute-activations", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
        "--distribute-saved-activations",
    ),
}  # fmt: skip
"""Maps a flag to the flags that Megatron refuses without it, or that are synonyms of it."""

_OFF = frozenset({"False", "None", "none"})
_NEW_RECIPES = (0, 13)
_PRECISION_FILE = (0, 16)
_OVERRIDE = (2, 15)
_CONFIG = "precision.yaml"
_NO_FLAG = (
    "no flag leaves out the scale history (--dist-ckpt-strictness ignores entries that a checkpoint lacks, never "
    "entries that it has): use a copy of the checkpoint without `_extra_state`"
)
_CHECKED = frozenset({"--fp8-recipe", "--micro-batch-size", "--te-precision-config-file"})
"""Flags whose printed values show whether a run is the experiment."""
_BACKWARD = frozenset({Gemm.DGRAD, Gemm.WGRAD})


class Megatron(Framework):
    """Experiments in Megatron-LM, by flags and a file of precisions by module."""

    title = "Megatron-LM"
    recipes = (Recipe.TENSORWISE, Recipe.BLOCKWISE, Recipe.MXFP8)
    first_layer = 0
    all_extras = tuple(_EXTRAS)

    def extras(self, arguments: Mapping[str, str] | None) -> tuple[str, ...]:
        """Return the flags of active extras, except those that the model requires."""
        if arguments is None:
            return self.all_extras
        # Megatron refuses tensor-parallel experts without sequence parallelism
        needed = {"--sequence-parallel"} if arguments.get("num_experts", "None") not in _OFF else set()
        active = (flag for flag, name in _EXTRAS.items() if arguments.get(name, "False") not in _OFF)
        return tuple(flag for flag in active if flag not in needed)

    def change(self, trial: Trial, setting: Setting) -> Change | str:
        """Return the flags for the experiment, or why it is not supported."""
        settings, notes = [*_start(setting)], list(_stops(setting))
        remove: tuple[str, ...] = ()
        if trial.is_regrouped:
            size, new_setting = _regroup(setting)
            settings.append(("--micro-batch-size", size))
            notes.append(new_setting)
        if in_bf16(trial):
            remove = _FP8
            settings.append(("--bf16", ""))
            notes.append(KEEP_OPTIMIZER)
        elif trial.drops_history:
            return no_delayed(trial, setting, "the candidate") or _NO_FLAG
        elif trial.recipe is not None:
            return _recipe(trial.recipe, setting, tuple(settings), tuple(notes))
        elif trial.without or trial.id.startswith("E1"):
            flags = trial.without or self.all_extras
            remove = tuple(dict.fromkeys(name for flag in flags for name in (flag, *_GO_WITH.get(flag, ()))))
        elif trial.products.changed:
            return _products(trial, setting, tuple(settings), tuple(notes))
        return Change(remove=remove, set=tuple(settings), notes=tuple(notes))

    def as_planned(self, experiment: Experiment, arithmetic: RunArithmetic) -> tuple[AsPlanned, str | None]:
        """Return whether the experiment ran as planned, according to the printed arguments."""
        trial, change = experiment.trial, experiment.change
        if arithmetic.arguments is None or change is None:
            return AsPlanned.UNKNOWN, "its log prints no arguments"
        is_off = arithmetic.argument("fp8") in {None, "None"}
        if in_bf16(trial) != is_off:
            return AsPlanned.NO, f"its log prints fp8 = {arithmetic.argument('fp8')}"
        named = {flag.lstrip("-").replace("-", "_"): value for flag, value in change.set if flag in _CHECKED}
        left_on = [flag for flag in trial.without if arithmetic.argument(_EXTRAS[flag]) not in {None, *_OFF}]
        otherwise = printed_otherwise(arithmetic, named)
        if otherwise is not None or left_on:
            return AsPlanned.NO, otherwise or f"its log prints that {left_on[0]} is still on"
        if trial.products.changed and not in_bf16(trial):
            return AsPlanned.UNKNOWN, "its arguments do not show the precision of single products"
        return AsPlanned.YES, None


def _recipe(
    recipe: Recipe, setting: Setting, settings: tuple[tuple[str, str], ...], notes: tuple[str, ...]
) -> Change | str:
    """Return the flags that change the recipe of the complete run, or why that is not supported."""
    is_old = setting.framework_version is not None and setting.framework_version < _NEW_RECIPES
    refused = te.no_recipe(recipe, setting.engine_version)
    if refused is not None:
        return refused
    if is_old and recipe is Recipe.BLOCKWISE:
        return "--fp8-recipe blockwise needs Megatron core 0.13"
    remove: tuple[str, ...] = _DELAYED
    if recipe is not Recipe.MXFP8:
        remove = (*remove, _MXFP8_BUFFER)
    elif is_old:  # the candidate had no parameters in MXFP8
        remove = (*remove, "--fp8-param-gather")
    settings, notes = (*settings, ("--fp8-recipe", recipe.value)), (*notes, *te.for_devices(recipe))
    return Change(remove=remove, set=settings, notes=notes)


def _regroup(setting: Setting) -> tuple[str, str]:
    """Return a micro-batch size that regroups the same samples, and a note about that size."""
    size = regrouped(setting.argument("micro_batch_size"))
    sizes = [setting.argument(name) or "" for name in ("global_batch_size", "data_parallel_size")]
    if size is None or not all(map(str.isdecimal, sizes)) or int(sizes[0]) % (int(size) * max(int(sizes[1]), 1)) == 0:
        return size or "<half of the old value>", SAME_BATCH
    return (
        "1",
        (
            "no other micro-batch size divides a rank's samples: run it on half as many devices, so that other devices "
            "sum the samples"
        ),
    )


def _products(
    trial: Trial, setting: Setting, settings: tuple[tuple[str, str], ...], notes: tuple[str, ...]
) -> Change | str:
    """Return the flags that change single products, or why that is not supported.

    Flags support only both products of the backward pass, or complete layers.
    """
    if trial.layers is not None:
        return _layers(trial, setting, settings, notes)
    in_high = frozenset(gemm for gemm in Gemm if trial.products.of(gemm) is Arithmetic.BF16)
    if in_high != _BACKWARD or trial.operand is not None:
        return "Megatron-LM never starts the debug features of Transformer Engine, and has no flag for it"
    version = setting.engine_version
    if version is not None and version < _OVERRIDE:
        return "NVTE_BACKWARD_OVERRIDE needs Transformer Engine 2.15, and older versions silently ignore it"
    if setting.recipe is Recipe.DELAYED:
        return "NVTE_BACKWARD_OVERRIDE stops with an error if the scale is delayed"
    notes = (*notes, "NVTE_BACKWARD_OVERRIDE is read when Transformer Engine is imported: set it for the process")
    return Change(set=settings, env=(("NVTE_BACKWARD_OVERRIDE", "high_precision"),), notes=notes)


def _layers(
    trial: Trial, setting: Setting, settings: tuple[tuple[str, str], ...], notes: tuple[str, ...]
) -> Change | str:
    if setting.recipe is Recipe.DELAYED:
        return "a precision per module is not possible if the scale is delayed"
    if setting.framework_version is not None and setting.framework_version < _PRECISION_FILE:
        return "--te-precision-config-file needs Megatron core 0.16"
    if setting.argument("pipeline_model_parallel_size") not in {None, "1"}:
        return "module names count layers from 0 in each pipeline stage, and there are several stages"
    notes = (*notes, "all three products of these layers are in BF16, because the precision is set per module here")
    path = f"{setting.folder}/{_CONFIG}"
    settings = (*settings, ("--te-precision-config-file", path))
    return Change(set=settings, files=((_CONFIG, _precision(trial)),), notes=notes)


def _precision(trial: Trial) -> str:
    lines = [
        "configs:",
        "  bf16:",
        '    transformer_engine_config_type: "TEQuantizationParams"',
        "    training_recipe: {}",
        "matchers:",
    ]
    for number in sorted(numbers_in(trial.layers or ""), key=int):
        lines += [
            f"  layer_{number}:",
            '    type: "glob"',
            "    enabled: true",
            f'    pattern: "*layers.{number}.*"',
            '    config: "bf16"',
        ]
    return "\n".join(lines) + "\n"


def _start(setting: Setting) -> Iterator[tuple[str, str]]:
    """Yield the flags that start at the checkpoint, save elsewhere, and stop with an unchanged learning rate."""
    if setting.load is not None:
        yield "--load", setting.load
        yield "--ckpt-step", str(setting.first_step)
    if setting.argument("save_interval") not in _OFF:  # Megatron refuses --save without it, and nothing is saved anyway
        yield "--save", f"{setting.folder}/checkpoints"
    yield "--exit-interval", str(setting.last_step)


def _stops(setting: Setting) -> Iterator[str]:
    if setting.load is None:
        yield "omit --load: it starts from scratch"
    yield (
        "--exit-interval ends the run at its first multiple; do not change --train-iters, because the learning "
        "rates depend on it"
    )


FRAMEWORK = Megatron()
